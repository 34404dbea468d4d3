// SPDX-License-Identifier: 0BSD
// What a library with machine code asks of the CUDA driver, which is opened at run time: the library links and answers
// without one. It needs a driver of CUDA 12.0 or later.
#include "machine_code.h"

#include <cstdint>

#include <dlfcn.h>
#include <sched.h>

namespace ekc::EKC_LIBRARY::runtime {
namespace {

// Values of cuda.h, which never change.
constexpr int max_dynamic_shared_bytes = 8;
constexpr int memory_type = 2, is_managed = 8, device_ordinal = 9;
constexpr int capability_major = 75, capability_minor = 76, pageable_access = 88, shared_optin = 97;
constexpr int multiprocessor_count = 16;
constexpr Error invalid_value = 1;
constexpr unsigned host_memory = 1;

struct Driver {
    Error error = no_driver; // of cuInit
    int (*init)(unsigned);
    int (*get_context)(void**);
    int (*set_context)(void*);
    int (*get_context_device)(int*);
    int (*get_device)(int*, int);
    int (*retain_context)(void**, int);
    int (*get_name)(char*, int, int);
    int (*get_attribute)(int*, int, int);
    int (*get_pointer_attribute)(void*, int, std::uintptr_t);
    int (*load_library)(void**, const void*, void*, void*, unsigned, void*, void*, unsigned);
    int (*unload_library)(void*);
    int (*get_kernel)(void**, void*, const char*);
    int (*set_kernel_attribute)(int, int, void*, int);
    int (*launch)(
        void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);
};

template <class Pointer>
bool find(void* library, const char* name, Pointer& pointer)
{
    // C++ has no conversion from void* to a pointer to a function; POSIX says that the bytes are the same.
    static_assert(sizeof(Pointer) == sizeof(void*), "dlsym returns functions too");
    *reinterpret_cast<void**>(&pointer) = dlsym(library, name);
    return pointer != nullptr;
}

Driver open_driver()
{
    Driver d{};
    d.error = no_driver;
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        return d;
    }
    const bool complete =
        find(library, "cuInit", d.init) && find(library, "cuCtxGetCurrent", d.get_context) &&
        find(library, "cuCtxSetCurrent", d.set_context) && find(library, "cuCtxGetDevice", d.get_context_device) &&
        find(library, "cuDeviceGet", d.get_device) && find(library, "cuDevicePrimaryCtxRetain", d.retain_context) &&
        find(library, "cuDeviceGetName", d.get_name) && find(library, "cuDeviceGetAttribute", d.get_attribute) &&
        find(library, "cuPointerGetAttribute", d.get_pointer_attribute) &&
        find(library, "cuLibraryLoadData", d.load_library) && find(library, "cuLibraryUnload", d.unload_library) &&
        find(library, "cuLibraryGetKernel", d.get_kernel) &&
        find(library, "cuKernelSetAttribute", d.set_kernel_attribute) && find(library, "cuLaunchKernel", d.launch);
    if (complete) {
        d.error = d.init(0);
    }
    return d;
}

// A lock of one variable: the library needs no C++ library at run time, so that C programs link it.
void lock(std::atomic<bool>& taken)
{
    while (taken.exchange(true, std::memory_order_acquire)) {
        sched_yield();
    }
}

void unlock(std::atomic<bool>& taken)
{
    taken.store(false, std::memory_order_release);
}

Driver the_driver;
std::atomic<bool> driver_lock{false}, driver_opened{false};

const Driver& get_driver()
{
    if (!driver_opened.load(std::memory_order_acquire)) {
        lock(driver_lock);
        if (!driver_opened.load(std::memory_order_relaxed)) {
            the_driver = open_driver();
            driver_opened.store(true, std::memory_order_release);
        }
        unlock(driver_lock);
    }
    return the_driver;
}

// As with the CUDA runtime, a thread without a context uses the first GPU.
Error make_context(const Driver& driver)
{
    int device = 0;
    void* context = nullptr;
    Error error = driver.get_device(&device, 0);
    if (error == success) {
        error = driver.retain_context(&context, device);
    }
    return error == success ? driver.set_context(context) : error;
}

// Load a part of the code, 0 the machine code, 1 the PTX, while its lock is held.
Error load_part(const Driver& driver, Code& code, int part)
{
    void*& library = code.libraries[part];
    Error error = success;
    if (library == nullptr) {
        const void* text = part == 0 ? code.cubin : code.ptx;
        error = driver.load_library(&library, text, nullptr, nullptr, 0, nullptr, nullptr, 0);
        library = error == success ? library : nullptr;
    }
    for (int i = 0; i < code.function_count && error == success; ++i) {
        std::atomic<void*>& loaded = code.functions[i].kernels[part];
        void* kernel = loaded.load(std::memory_order_relaxed);
        if (kernel == nullptr) {
            error = driver.get_kernel(&kernel, library, code.functions[i].name);
            loaded.store(error == success ? kernel : nullptr, std::memory_order_release);
        }
    }
    return error;
}

// Unload a part, while its lock is held. The driver is not asked twice: after an error the part counts as unloaded.
Error unload_part(const Driver& driver, Code& code, int part)
{
    void* const library = code.libraries[part];
    for (int i = 0; i < code.function_count; ++i) {
        code.functions[i].kernels[part].store(nullptr, std::memory_order_release);
    }
    code.libraries[part] = nullptr;
    return library == nullptr ? success : driver.unload_library(library);
}

// The current device, and the part of the code that it runs.
Error choose_part(const Driver& driver, const Code& code, int& device, int& part)
{
    int major = 0, minor = 0;
    Error error = get_device(device);
    if (error == success) {
        error = driver.get_attribute(&major, capability_major, device);
    }
    if (error == success) {
        error = driver.get_attribute(&minor, capability_minor, device);
    }
    if (error != success) {
        return error;
    }
    const int capability = 10 * major + minor;
    const bool runs = code.exact ? capability == code.capability
                                 : capability / 10 == code.capability / 10 && capability >= code.capability;
    part = runs ? 0 : 1;
    return runs || (code.ptx != nullptr && capability >= code.capability) ? success : no_kernel_image;
}

Error load(const Driver& driver, Code& code, int part)
{
    lock(code.locks[part]);
    const Error error = load_part(driver, code, part);
    unlock(code.locks[part]);
    return error;
}

} // namespace

Error get_device(int& device)
{
    const Driver& driver = get_driver();
    if (driver.error != success) {
        return driver.error;
    }
    void* context = nullptr;
    Error error = driver.get_context(&context);
    if (error == success && context == nullptr) {
        error = make_context(driver);
    }
    return error == success ? driver.get_context_device(&device) : error;
}

Error read_properties(int device, Properties& properties)
{
    const Driver& driver = get_driver();
    int major = 0, minor = 0, pageable = 0, shared = 0;
    const int numbers[] = {capability_major, capability_minor, pageable_access, shared_optin, multiprocessor_count};
    int* const places[] = {&major, &minor, &pageable, &shared, &properties.multiprocessors};
    for (int i = 0; i < 5; ++i) {
        const Error error = driver.get_attribute(places[i], numbers[i], device);
        if (error != success) {
            return error;
        }
    }
    properties.capability = 10 * major + minor;
    properties.shared_bytes = static_cast<std::size_t>(shared);
    properties.reads_pageable = pageable != 0;
    return driver.get_name(properties.name, static_cast<int>(sizeof properties.name), device);
}

Error read_pointer(const void* pointer, Pointer& found)
{
    const Driver& driver = get_driver();
    const auto address = reinterpret_cast<std::uintptr_t>(pointer);
    unsigned type = 0;
    found = {Memory::unregistered, 0};
    Error error = driver.get_pointer_attribute(&type, memory_type, address);
    if (error == invalid_value) {
        return success; // CUDA does not know it.
    }
    if (error != success) {
        return error;
    }
    unsigned managed = 0;
    error = driver.get_pointer_attribute(&managed, is_managed, address);
    if (error == success) {
        error = driver.get_pointer_attribute(&found.device, device_ordinal, address);
    }
    found.memory = managed != 0 ? Memory::managed : type == host_memory ? Memory::host : Memory::device;
    return error;
}

Error load(Code& code)
{
    const Driver& driver = get_driver();
    int device = 0, part = 0;
    const Error error = choose_part(driver, code, device, part);
    return error == success ? load(driver, code, part) : error;
}

Error unload(Code& code)
{
    Error first = success;
    for (int part = 0; part < 2; ++part) {
        lock(code.locks[part]);
        const Error error = code.libraries[part] == nullptr ? success : unload_part(get_driver(), code, part);
        unlock(code.locks[part]);
        first = first == success ? error : first;
    }
    return first;
}

Error launch(Code& code, Function& function, void** arguments, void* stream)
{
    const Driver& driver = get_driver();
    int device = 0, part = 0;
    Error error = choose_part(driver, code, device, part);
    if (error == success && function.kernels[part].load(std::memory_order_acquire) == nullptr) {
        error = load(driver, code, part);
    }
    if (error != success) {
        return error;
    }
    void* const kernel = function.kernels[part].load(std::memory_order_acquire);
    if (function.shared_bytes > 0) {
        // More shared memory than a kernel may declare must be requested, on every device.
        error = driver.set_kernel_attribute(
            max_dynamic_shared_bytes, static_cast<int>(function.shared_bytes), kernel, device);
        if (error != success) {
            return error;
        }
    }
    return driver.launch(
        kernel, function.grid[0], function.grid[1], function.grid[2], function.block[0], function.block[1],
        function.block[2], function.shared_bytes, stream, arguments, nullptr);
}

} // namespace ekc::EKC_LIBRARY::runtime
