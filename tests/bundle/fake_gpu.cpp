// libcuda.so.1 with one GPU, of FAKE_CAPABILITY and FAKE_NAME, whose memory is that of the host. A launch of NAME calls
// run_NAME of the library FAKE_CODE. Without that it fills the output with numbers that depend on the inputs and the
// position alone. The file FAKE_KERNELS has a line for each kernel: NAME TYPE OUTPUT_INDEX OUTPUT_BYTES COUNT, then INDEX
// BYTES of COUNT inputs. FAKE_FAULT is "NAME wrong|nan|unwritten|beyond|graph|stream": what this kernel does wrong, with
// the last two from a graph or on a stream that does not block. FAKE_ERROR is "FUNCTION NUMBER". A launch takes 10 us,
// that of a naive kernel 40 us. A graph takes the time of its launches; it executes them if FAKE_GRAPHS is "run".
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <dlfcn.h>

namespace {

std::string get(const char* name)
{
    const char* text = std::getenv(name);
    return text != nullptr ? text : "";
}

int answer(const std::string& function)
{
    std::istringstream words{get("FAKE_ERROR")};
    std::string name;
    int number = 0;
    words >> name >> number;
    return name == function ? number : 0;
}

struct Part {
    std::size_t index = 0, bytes = 0;
};

struct Kernel {
    std::string name, type;
    Part output;
    std::vector<Part> inputs;
};

struct Span {
    double us = 0;
};

struct Node {
    const Kernel* kernel;
    std::vector<void*> values;
};

struct Graph {
    double us = 0;
    std::vector<Node> nodes;
};

Span now;
Graph captured;
bool captures = false;

std::uint64_t mix(std::uint64_t value)
{
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9u;
    return value ^ value >> 29;
}

Kernel* find_kernel(const std::string& name)
{
    std::ifstream file{get("FAKE_KERNELS")};
    for (std::string line; std::getline(file, line);) {
        std::istringstream words{line};
        Kernel kernel;
        std::size_t count = 0;
        words >> kernel.name >> kernel.type >> kernel.output.index >> kernel.output.bytes >> count;
        kernel.inputs.resize(count);
        for (Part& part : kernel.inputs) {
            words >> part.index >> part.bytes;
        }
        if (kernel.name == name) {
            return new Kernel{kernel};
        }
    }
    return nullptr;
}

// 1, 2, 4 or 8 as an element.
void write_number(const std::string& type, unsigned exponent, unsigned char* to)
{
    const auto real = static_cast<float>(1u << exponent);
    const auto whole = static_cast<std::int32_t>(1u << exponent);
    const auto half = static_cast<std::uint16_t>(0x3C00u + 0x400u * exponent);
    if (type == "float32") {
        std::memcpy(to, &real, 4);
    } else if (type == "float16") {
        std::memcpy(to, &half, 2);
    } else if (type == "bfloat16") {
        std::memcpy(to, reinterpret_cast<const unsigned char*>(&real) + 2, 2);
    } else {
        std::memcpy(to, &whole, type == "int8" ? 1 : 4);
    }
}

std::size_t count_bytes(const std::string& type)
{
    return type == "int8" ? 1 : type == "float16" || type == "bfloat16" ? 2 : 4;
}

void spoil(const std::string& fault, const std::string& type, unsigned char* output, std::size_t bytes)
{
    const std::size_t size = count_bytes(type);
    unsigned char* const last = output + bytes - size;
    if (fault == "wrong") {
        write_number(type, *last % 2 == 0 ? 4 : 5, last);
    } else if (fault == "nan") {
        std::memset(last, 0x7F, size);
        last[size - 2] = 0xFF;
    } else if (fault == "beyond") {
        write_number(type, 0, last + size);
    }
}

void fill(const Kernel& kernel, void** arguments)
{
    const auto point = [&](std::size_t index) { return *static_cast<unsigned char**>(arguments[index]); };
    std::uint64_t hash = 1;
    for (const Part& part : kernel.inputs) {
        for (std::size_t i = 0; i < part.bytes; ++i) {
            hash = (hash ^ point(part.index)[i]) * 1099511628211u;
        }
    }
    const std::size_t size = count_bytes(kernel.type);
    for (std::size_t at = 0; at < kernel.output.bytes; at += size) {
        write_number(kernel.type, mix(hash + at) >> 40 & 3, point(kernel.output.index) + at);
    }
}

void execute(const Kernel& kernel, void** arguments, const std::string& place = "")
{
    auto* const output = *static_cast<unsigned char**>(arguments[kernel.output.index]);
    const std::size_t size = count_bytes(kernel.type), last = kernel.output.bytes - size;
    const std::vector<unsigned char> before{output + last, output + last + size};
    static void* const code = dlopen(get("FAKE_CODE").c_str(), RTLD_NOW);
    if (get("FAKE_CODE").empty()) {
        fill(kernel, arguments);
    } else {
        reinterpret_cast<void (*)(void**)>(dlsym(code, ("run_" + kernel.name).c_str()))(arguments);
    }
    std::string fault, name;
    std::istringstream{get("FAKE_FAULT")} >> name >> fault;
    if (name == kernel.name && fault == "unwritten") {
        std::memcpy(output + last, before.data(), size);
    } else if (name == kernel.name) {
        spoil(!place.empty() && fault == place ? "wrong" : fault, kernel.type, output, kernel.output.bytes);
    }
}

// Executes the launches of a graph, in order.
void replay(Graph& graph)
{
    for (Node& node : graph.nodes) {
        std::vector<void*> arguments;
        for (void*& value : node.values) {
            arguments.push_back(&value);
        }
        execute(*node.kernel, arguments.data(), "graph");
    }
}

char context, library, streams[2];

} // namespace

extern "C" {

int cuInit(unsigned) { return answer("cuInit"); }
int cuDriverGetVersion(int* version) { return *version = 13000, answer("cuDriverGetVersion"); }
int cuDeviceGetCount(int* count) { return *count = 1, answer("cuDeviceGetCount"); }
int cuDeviceGet(int* device, int number) { return *device = number, answer("cuDeviceGet"); }
int cuDevicePrimaryCtxRetain(void** found, int) { return *found = &context, answer("cuDevicePrimaryCtxRetain"); }
int cuCtxGetCurrent(void** found) { return *found = &context, answer("cuCtxGetCurrent"); }
int cuCtxSetCurrent(void*) { return answer("cuCtxSetCurrent"); }
int cuCtxGetDevice(int* device) { return *device = 0, answer("cuCtxGetDevice"); }
int cuCtxSynchronize() { return answer("cuCtxSynchronize"); }

int cuDeviceGetName(char* name, int bytes, int)
{
    std::snprintf(name, static_cast<std::size_t>(bytes), "%s", get("FAKE_NAME").c_str());
    return 0;
}

int cuDeviceGetAttribute(int* value, int attribute, int)
{
    const int capability = std::atoi(get("FAKE_CAPABILITY").c_str());
    *value = attribute == 75 ? capability / 10 : attribute == 76 ? capability % 10 : attribute == 97 ? 232448 : 0;
    return 0;
}

int cuDeviceGetUuid_v2(unsigned char* uuid, int)
{
    for (int i = 0; i < 16; ++i) {
        uuid[i] = static_cast<unsigned char>(17 * i);
    }
    return 0;
}

int cuPointerGetAttribute(void* value, int attribute, std::uint64_t)
{
    const unsigned facts = attribute == 2 ? 2 : 0;
    std::memcpy(value, &facts, sizeof facts);
    return 0;
}

int cuMemAlloc_v2(std::uint64_t* address, std::size_t bytes)
{
    *address = reinterpret_cast<std::uintptr_t>(std::aligned_alloc(256, (bytes + 255) / 256 * 256));
    return answer("cuMemAlloc");
}

int cuMemFree_v2(std::uint64_t address) { return std::free(reinterpret_cast<void*>(address)), 0; }

int cuMemcpyHtoD_v2(std::uint64_t to, const void* from, std::size_t bytes)
{
    std::memcpy(reinterpret_cast<void*>(to), from, bytes);
    return 0;
}

int cuMemcpyDtoH_v2(void* to, std::uint64_t from, std::size_t bytes)
{
    std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
    return 0;
}

int cuMemsetD8_v2(std::uint64_t to, unsigned char value, std::size_t bytes)
{
    std::memset(reinterpret_cast<void*>(to), value, bytes);
    return 0;
}

int cuLibraryLoadData(void** found, const void*, void*, void*, unsigned, void*, void*, unsigned)
{
    return *found = &library, answer("cuLibraryLoadData");
}

int cuLibraryUnload(void*) { return 0; }
int cuKernelSetAttribute(int, int, void*, int) { return 0; }

int cuLibraryGetKernel(void** kernel, void*, const char* name)
{
    *kernel = find_kernel(name);
    return *kernel == nullptr ? 500 : 0;
}

int cuModuleLoadData(void** found, const void* text)
{
    *found = &library;
    return std::strstr(static_cast<const char*>(text), ".entry") == nullptr ? 218 : answer("cuModuleLoadData");
}

int cuModuleUnload(void*) { return 0; }

int cuModuleGetFunction(void** function, void* module, const char* name)
{
    return cuLibraryGetKernel(function, module, name);
}

int cuLaunchKernel(
    void* kernel, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void* stream, void** arguments, void**)
{
    const Kernel& own = *static_cast<Kernel*>(kernel);
    const bool is_naive = own.name.find("_N_") != std::string::npos;
    if (!captures) {
        execute(own, arguments, stream == &streams[1] ? "stream" : "");
    } else if (get("FAKE_GRAPHS") == "run") {
        captured.nodes.push_back({&own, {}});
        for (std::size_t i = 0; i <= own.output.index; ++i) {
            captured.nodes.back().values.push_back(*static_cast<void**>(arguments[i]));
        }
    }
    (captures ? captured.us : now.us) += is_naive ? 40 : 10;
    return is_naive ? answer("cuLaunchKernel_naive") : answer("cuLaunchKernel");
}

int cuStreamCreate(void** found, unsigned flags) { return *found = &streams[flags & 1], 0; }

int cuStreamBeginCapture_v2(void*, int)
{
    captures = true;
    captured = {};
    return 0;
}

int cuStreamEndCapture(void*, void** graph)
{
    captures = false;
    *graph = new Graph{captured};
    return 0;
}

int cuGraphInstantiateWithFlags(void** executable, void* graph, unsigned long long)
{
    return *executable = new Graph{*static_cast<Graph*>(graph)}, 0;
}

int cuGraphLaunch(void* executable, void*)
{
    Graph& graph = *static_cast<Graph*>(executable);
    replay(graph);
    return now.us += graph.us, 0;
}

int cuGraphDestroy(void* graph) { return delete static_cast<Graph*>(graph), 0; }
int cuGraphExecDestroy(void* executable) { return delete static_cast<Graph*>(executable), 0; }
int cuEventCreate(void** event, unsigned) { return *event = new Span, 0; }
int cuEventRecord(void* event, void*) { return *static_cast<Span*>(event) = now, 0; }
int cuEventSynchronize(void*) { return answer("cuEventSynchronize"); }

int cuEventElapsedTime(float* milliseconds, void* from, void* to)
{
    *milliseconds = static_cast<float>(1e-3 * (static_cast<Span*>(to)->us - static_cast<Span*>(from)->us));
    return 0;
}
}
