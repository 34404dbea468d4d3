// SPDX-License-Identifier: 0BSD
// The GPU of the check program of a library: driver and NVML, opened at run time, memory, time and energy.
#ifndef EKC_CHECK_GPU_H
#define EKC_CHECK_GPU_H

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include <dlfcn.h>

namespace ekc::check {

/// A call of the driver that failed.
struct CudaError {
    const char* call;
    int code; ///< a CUresult
};

constexpr int no_memory = 2, unsupported_ptx = 222;

using Address = std::uint64_t;
struct Uuid {
    unsigned char bytes[16];
};

/// Functions of libcuda.so.1. Their types and numbers are those of cuda.h, which never change.
struct Driver {
    int (*init)(unsigned);
    int (*get_version)(int*);
    int (*count_devices)(int*);
    int (*get_device)(int*, int);
    int (*get_name)(char*, int, int);
    int (*get_attribute)(int*, int, int);
    int (*get_uuid)(Uuid*, int);
    int (*retain_context)(void**, int);
    int (*set_context)(void*);
    int (*synchronize)();
    int (*allocate)(Address*, std::size_t);
    int (*release)(Address);
    int (*copy_to_device)(Address, const void*, std::size_t);
    int (*copy_to_host)(void*, Address, std::size_t);
    int (*fill)(Address, unsigned char, std::size_t);
    int (*load_module)(void**, const void*);
    int (*unload_module)(void*);
    int (*get_function)(void**, void*, const char*);
    int (*launch)(
        void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);
    int (*create_stream)(void**, unsigned);
    int (*begin_capture)(void*, int);
    int (*end_capture)(void*, void**);
    int (*instantiate)(void**, void*, unsigned long long);
    int (*launch_graph)(void*, void*);
    int (*destroy_graph)(void*);
    int (*destroy_executable)(void*);
    int (*create_event)(void**, unsigned);
    int (*record)(void*, void*);
    int (*wait)(void*);
    int (*measure)(float*, void*, void*);
};

template <class Pointer>
bool find(void* library, const char* name, Pointer& pointer)
{
    static_assert(sizeof(Pointer) == sizeof(void*), "dlsym returns functions too");
    *reinterpret_cast<void**>(&pointer) = dlsym(library, name);
    return pointer != nullptr;
}

/// Open the driver; false where it is missing or lacks a function.
inline bool open_driver(Driver& d)
{
    void* const l = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    return l != nullptr && find(l, "cuInit", d.init) && find(l, "cuDriverGetVersion", d.get_version) &&
           find(l, "cuDeviceGetCount", d.count_devices) && find(l, "cuDeviceGet", d.get_device) &&
           find(l, "cuDeviceGetName", d.get_name) && find(l, "cuDeviceGetAttribute", d.get_attribute) &&
           find(l, "cuDeviceGetUuid_v2", d.get_uuid) && find(l, "cuDevicePrimaryCtxRetain", d.retain_context) &&
           find(l, "cuCtxSetCurrent", d.set_context) && find(l, "cuCtxSynchronize", d.synchronize) &&
           find(l, "cuMemAlloc_v2", d.allocate) && find(l, "cuMemFree_v2", d.release) &&
           find(l, "cuMemcpyHtoD_v2", d.copy_to_device) && find(l, "cuMemcpyDtoH_v2", d.copy_to_host) &&
           find(l, "cuMemsetD8_v2", d.fill) && find(l, "cuModuleLoadData", d.load_module) &&
           find(l, "cuModuleUnload", d.unload_module) && find(l, "cuModuleGetFunction", d.get_function) &&
           find(l, "cuLaunchKernel", d.launch) && find(l, "cuStreamCreate", d.create_stream) &&
           find(l, "cuStreamBeginCapture_v2", d.begin_capture) && find(l, "cuStreamEndCapture", d.end_capture) &&
           find(l, "cuGraphInstantiateWithFlags", d.instantiate) && find(l, "cuGraphLaunch", d.launch_graph) &&
           find(l, "cuGraphDestroy", d.destroy_graph) && find(l, "cuGraphExecDestroy", d.destroy_executable) &&
           find(l, "cuEventCreate", d.create_event) && find(l, "cuEventRecord", d.record) &&
           find(l, "cuEventSynchronize", d.wait) && find(l, "cuEventElapsedTime", d.measure);
}

inline void must(int code, const char* call)
{
    if (code != 0) {
        throw CudaError{call, code};
    }
}

/// The first GPU, with its primary context, which the CUDA runtime uses too.
struct Gpu {
    const Driver& driver;
    std::string name;
    int capability = 0; ///< 10 * major + minor
    std::size_t shared_bytes = 0;
    int driver_version = 0; ///< 13000 is 13.0
    Uuid uuid{};
    void* stream = nullptr;
    void* events[2] = {};

    explicit Gpu(const Driver& opened) : driver{opened}
    {
        int device = 0, major = 0, minor = 0, shared = 0;
        char text[256] = "";
        void* context = nullptr;
        must(driver.get_device(&device, 0), "cuDeviceGet");
        must(driver.get_version(&driver_version), "cuDriverGetVersion");
        must(driver.get_name(text, static_cast<int>(sizeof text), device), "cuDeviceGetName");
        must(driver.get_attribute(&major, 75, device), "cuDeviceGetAttribute");
        must(driver.get_attribute(&minor, 76, device), "cuDeviceGetAttribute");
        must(driver.get_attribute(&shared, 97, device), "cuDeviceGetAttribute"); // of a block, if it asks for it
        must(driver.get_uuid(&uuid, device), "cuDeviceGetUuid");
        must(driver.retain_context(&context, device), "cuDevicePrimaryCtxRetain");
        must(driver.set_context(context), "cuCtxSetCurrent");
        must(driver.create_stream(&stream, 0), "cuStreamCreate");
        must(driver.create_event(&events[0], 0), "cuEventCreate");
        must(driver.create_event(&events[1], 0), "cuEventCreate");
        name = text;
        capability = 10 * major + minor;
        shared_bytes = static_cast<std::size_t>(shared);
    }
    Gpu(const Gpu&) = delete;
    Gpu& operator=(const Gpu&) = delete;

    void synchronize() const { must(driver.synchronize(), "cuCtxSynchronize"); }
};

/// Memory of the GPU between two guards of known bytes.
class Memory {
public:
    Memory(const Gpu& gpu, std::size_t bytes) : gpu_{gpu}, bytes_{bytes}, padded_{(bytes + 255) / 256 * 256}
    {
        must(gpu_.driver.allocate(&address_, padded_ + 2 * guard), "cuMemAlloc");
    }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    ~Memory() { gpu_.driver.release(address_); }

    Address address() const { return address_ + guard; }
    void* pointer() const { return reinterpret_cast<void*>(static_cast<std::uintptr_t>(address())); }
    void write(const std::vector<unsigned char>& values) const
    {
        must(gpu_.driver.copy_to_device(address(), values.data(), values.size()), "cuMemcpyHtoD");
    }
    /// Fill the memory and its guards with a byte.
    void fill(unsigned char value) const
    {
        must(gpu_.driver.fill(address_, value, padded_ + 2 * guard), "cuMemsetD8");
    }
    /// Read the memory; `strays` are the bytes around it that differ from `filled`.
    std::vector<unsigned char> read(unsigned char filled, std::size_t& strays) const
    {
        std::vector<unsigned char> all(padded_ + 2 * guard);
        must(gpu_.driver.copy_to_host(all.data(), address_, all.size()), "cuMemcpyDtoH");
        const auto begin = all.begin() + guard, end = begin + static_cast<std::ptrdiff_t>(bytes_);
        const auto differs = [=](unsigned char byte) { return byte != filled; };
        strays = static_cast<std::size_t>(
            std::count_if(all.begin(), begin, differs) + std::count_if(end, all.end(), differs));
        return {begin, end};
    }

private:
    static constexpr int guard = 4096;
    const Gpu& gpu_;
    std::size_t bytes_, padded_;
    Address address_ = 0;
};

/// Calls of a kernel, recorded once and replayed, so that the time of the host for a launch does not count.
class Replay {
public:
    template <class Call>
    Replay(const Gpu& gpu, const Call& call, int calls) : gpu_{gpu}, calls_{calls}
    {
        constexpr int relaxed = 2;
        void* graph = nullptr;
        must(gpu.driver.begin_capture(gpu.stream, relaxed), "cuStreamBeginCapture");
        try {
            for (int i = 0; i < calls; ++i) {
                call();
            }
        } catch (...) {
            gpu.driver.end_capture(gpu.stream, &graph);
            throw;
        }
        must(gpu.driver.end_capture(gpu.stream, &graph), "cuStreamEndCapture");
        const int code = gpu.driver.instantiate(&executable_, graph, 0);
        gpu.driver.destroy_graph(graph);
        must(code, "cuGraphInstantiateWithFlags");
    }
    Replay(const Replay&) = delete;
    Replay& operator=(const Replay&) = delete;
    ~Replay() { gpu_.driver.destroy_executable(executable_); }

    int calls() const { return calls_; }
    void start(int repeats) const
    {
        for (int i = 0; i < repeats; ++i) {
            must(gpu_.driver.launch_graph(executable_, gpu_.stream), "cuGraphLaunch");
        }
    }

private:
    const Gpu& gpu_;
    int calls_;
    void* executable_ = nullptr;
};

/// Seconds between two events around some work.
template <class Work>
double measure_seconds(const Gpu& gpu, const Work& work)
{
    float milliseconds = 0;
    must(gpu.driver.record(gpu.events[0], gpu.stream), "cuEventRecord");
    work();
    must(gpu.driver.record(gpu.events[1], gpu.stream), "cuEventRecord");
    must(gpu.driver.wait(gpu.events[1]), "cuEventSynchronize");
    must(gpu.driver.measure(&milliseconds, gpu.events[0], gpu.events[1]), "cuEventElapsedTime");
    return std::max(1e-3 * static_cast<double>(milliseconds), 1e-7);
}

inline int count_repeats(double seconds, double call_s, int most)
{
    return static_cast<int>(std::clamp(seconds / call_s, 1.0, static_cast<double>(most)));
}

/// Record calls for about a millisecond. Run the kernel once before: its code is loaded at the first call.
template <class Call>
Replay record_calls(const Gpu& gpu, const Call& call)
{
    const double call_s = measure_seconds(gpu, call);
    return Replay{gpu, call, count_repeats(1e-3, call_s, 100)};
}

/// Seconds of a call: the median of 11 samples of about 2 ms, after 20 ms of calls. A call longer than 20 ms has 3.
inline double measure_latency(const Gpu& gpu, const Replay& replay)
{
    const double calls = replay.calls();
    double replay_s = measure_seconds(gpu, [&] { replay.start(1); });
    const int warm_up = count_repeats(20e-3, replay_s, 10000);
    replay_s = measure_seconds(gpu, [&] { replay.start(warm_up); }) / warm_up;
    const int repeats = count_repeats(2e-3, replay_s, 10000);
    std::vector<double> samples(replay_s > 20e-3 ? 3 : 11);
    for (double& sample : samples) {
        sample = measure_seconds(gpu, [&] { replay.start(repeats); }) / (repeats * calls);
    }
    std::sort(samples.begin(), samples.end());
    return samples[samples.size() / 2];
}

/// The energy counter of a GPU, or the reason why there is none.
class EnergyCounter {
public:
    explicit EnergyCounter(const Gpu& gpu)
    {
        int (*init)();
        int (*find_device)(const char*, void**);
        void* const library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
        if (library == nullptr) {
            missing_ = "libnvidia-ml.so.1 is missing";
            return;
        }
        if (!find(library, "nvmlInit_v2", init) || !find(library, "nvmlDeviceGetHandleByUUID", find_device) ||
            !find(library, "nvmlDeviceGetTotalEnergyConsumption", read_)) {
            missing_ = "libnvidia-ml.so.1 lacks a function";
            return;
        }
        int code = init();
        if (code != 0) {
            missing_ = "nvmlInit_v2 gave " + std::to_string(code);
            return;
        }
        code = find_device(format_uuid(gpu.uuid).c_str(), &device_);
        unsigned long long first = 0;
        if (code != 0) {
            missing_ = "NVML does not know the GPU, error " + std::to_string(code);
        } else if ((code = read_(device_, &first)) != 0) {
            missing_ = "the GPU has no energy counter, NVML error " + std::to_string(code);
        }
    }

    /// Why there are no readings; "" where there are.
    const std::string& missing() const { return missing_; }
    /// Millijoules since the driver was loaded; 0 where the reading failed.
    std::uint64_t read_mj() const
    {
        unsigned long long reading = 0;
        return read_(device_, &reading) == 0 ? reading : 0;
    }

private:
    static std::string format_uuid(const Uuid& uuid)
    {
        std::string text = "GPU";
        for (int i = 0; i < 16; ++i) {
            char digits[4];
            std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned>(uuid.bytes[i]));
            text += i == 0 || i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "";
            text += digits;
        }
        return text;
    }

    int (*read_)(void*, unsigned long long*) = nullptr;
    void* device_ = nullptr;
    std::string missing_;
};

/// Joules of a call: those of the whole board during calls that follow each other, divided by their number. The
/// counter is renewed every 20 to 100 ms, so the time begins and ends with a renewal. -1 where none came.
inline double measure_energy(
    const Gpu& gpu, const EnergyCounter& counter, const Replay& replay, double call_s, double seconds)
{
    using Clock = std::chrono::steady_clock;
    const double replay_s = call_s * replay.calls();
    const int repeats = count_repeats(10e-3, replay_s, 10000);
    const auto count_seconds = [](Clock::time_point since) {
        return std::chrono::duration<double>(Clock::now() - since).count();
    };
    const auto queue = [&](int batch) {
        replay.start(repeats);
        must(gpu.driver.record(gpu.events[batch % 2], gpu.stream), "cuEventRecord");
    };
    auto start = Clock::now();
    std::uint64_t last = counter.read_mj(), first = 0;
    int first_batch = -1;
    double joules = -1.0;
    queue(0);
    for (int batch = 0; joules < 0.0 && count_seconds(start) < seconds + 1.0; ++batch) {
        queue(batch + 1); // so that the GPU does not wait
        must(gpu.driver.wait(gpu.events[batch % 2]), "cuEventSynchronize");
        const std::uint64_t reading = counter.read_mj();
        if (reading != last && first_batch < 0) {
            first = reading;
            first_batch = batch;
            start = Clock::now();
        } else if (reading != last && count_seconds(start) >= seconds) {
            const double calls = static_cast<double>(batch - first_batch) * repeats * replay.calls();
            joules = 1e-3 * static_cast<double>(reading - first) / calls;
        }
        last = reading;
    }
    gpu.synchronize();
    return joules;
}

} // namespace ekc::check

#endif
