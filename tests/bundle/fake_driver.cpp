// libcuda.so.1 with one GPU, of FAKE_CAPABILITY and FAKE_NAME, that writes its calls to the file FAKE_LOG. A
// pointer below 4096 is unknown to it, others are of device 0. It fails where FAKE_ERROR says "FUNCTION NUMBER".
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <unistd.h>

namespace {

const char* get(const char* name)
{
    const char* text = std::getenv(name);
    return text != nullptr ? text : "";
}

int answer(const char* function)
{
    char name[64] = "";
    int number = 0;
    const bool fails = std::sscanf(get("FAKE_ERROR"), "%63s %d", name, &number) == 2 && std::strcmp(name, function) == 0;
    return fails ? number : 0;
}

int context;
thread_local int current;

template <class... Values>
int log(const char* function, const char* format, Values... values)
{
    if (std::FILE* file = std::fopen(get("FAKE_LOG"), "a")) {
        std::fprintf(file, "%s ", function);
        std::fprintf(file, format, values...);
        std::fputc('\n', file);
        std::fclose(file);
    }
    return answer(function);
}

// End of a table of an ELF file, given the places of its offset, and of size and count of its rows.
std::size_t find_end(const unsigned char* code, int offset_at, int sizes_at)
{
    std::uint64_t offset;
    std::uint16_t sizes[2];
    std::memcpy(&offset, code + offset_at, sizeof offset);
    std::memcpy(sizes, code + sizes_at, sizeof sizes);
    return offset + std::size_t{sizes[0]} * sizes[1];
}

// Bytes of an ELF file, which ends with its section headers or program headers.
std::size_t measure(const unsigned char* code)
{
    const std::size_t sections = find_end(code, 40, 58), programs = find_end(code, 32, 54);
    return sections > programs ? sections : programs;
}

} // namespace

extern "C" {

int cuInit(unsigned)
{
    return answer("cuInit");
}

int cuCtxGetCurrent(void** found)
{
    *found = current != 0 ? &context : nullptr;
    return answer("cuCtxGetCurrent");
}

int cuCtxSetCurrent(void* given)
{
    current = given == &context;
    return answer("cuCtxSetCurrent");
}

int cuCtxGetDevice(int* device)
{
    *device = 0;
    return current != 0 ? answer("cuCtxGetDevice") : 201;
}

int cuDeviceGet(int* device, int number)
{
    *device = number;
    return answer("cuDeviceGet");
}

int cuDevicePrimaryCtxRetain(void** retained, int device)
{
    *retained = &context;
    return log("cuDevicePrimaryCtxRetain", "%d", device);
}

int cuDeviceGetName(char* name, int bytes, int)
{
    std::snprintf(name, static_cast<std::size_t>(bytes), "%s", get("FAKE_NAME"));
    return answer("cuDeviceGetName");
}

int cuDeviceGetAttribute(int* value, int attribute, int)
{
    const int capability = std::atoi(get("FAKE_CAPABILITY"));
    *value = attribute == 75   ? capability / 10
             : attribute == 76 ? capability % 10
             : attribute == 97 ? 232448
             : attribute == 16 ? std::atoi(get("FAKE_MULTIPROCESSORS"))
                               : 0;
    return answer("cuDeviceGetAttribute");
}

int cuPointerGetAttribute(void* value, int attribute, std::uintptr_t pointer)
{
    const unsigned facts = attribute == 2 ? 2 : 0;
    std::memcpy(value, &facts, sizeof facts);
    return pointer < 4096 ? 1 : answer("cuPointerGetAttribute");
}

int cuLibraryLoadData(void** library, const void* code, void*, void*, unsigned, void*, void*, unsigned)
{
    static std::atomic<int> loaded{0};
    *library = reinterpret_cast<void*>(static_cast<std::uintptr_t>(++loaded));
    usleep(static_cast<useconds_t>(std::atoi(get("FAKE_LOAD_US"))));
    const auto* bytes = static_cast<const unsigned char*>(code);
    const bool is_cubin = std::memcmp(bytes, "\177ELF", 4) == 0;
    const std::size_t size = is_cubin ? measure(bytes) : std::strlen(static_cast<const char*>(code));
    std::uint64_t hash = 14695981039346656037u;
    for (std::size_t i = 0; i < size; ++i) {
        hash = (hash ^ bytes[i]) * 1099511628211u;
    }
    return log("cuLibraryLoadData", "%s %zu %016llx", is_cubin ? "cubin" : "ptx", size, static_cast<unsigned long long>(hash));
}

int cuLibraryUnload(void*)
{
    return log("cuLibraryUnload", "%s", "");
}

int cuLibraryGetKernel(void** kernel, void* library, const char* name)
{
    *kernel = library;
    return log("cuLibraryGetKernel", "%s", name);
}

int cuKernelSetAttribute(int attribute, int value, void*, int device)
{
    return log("cuKernelSetAttribute", "%d %d %d", attribute, value, device);
}

int cuLaunchKernel(
    void* kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
    unsigned shared_bytes, void* stream, void** arguments, void**)
{
    return log(
        "cuLaunchKernel", "%p %u %u %u %u %u %u %u %p %p", kernel, grid_x, grid_y, grid_z, block_x, block_y, block_z,
        shared_bytes, stream, *static_cast<void**>(arguments[0]));
}
}
