// SPDX-License-Identifier: 0BSD
// What a library asks of CUDA: by the runtime or the driver, or by stubs in the host test. Not installed.
#ifndef EKC_RUNTIME_H
#define EKC_RUNTIME_H

#include <cstddef>

#include "names.h"

#ifdef __GNUC__
#pragma GCC visibility push(hidden)
#endif

namespace ekc::EKC_LIBRARY::runtime {

/// A cudaError_t; the first values of CUresult are the same.
using Error = int;
constexpr Error success = 0;
constexpr Error no_driver = 35;
constexpr Error no_device = 100;
constexpr Error no_kernel_image = 209;

struct Properties {
    int capability;           ///< 10 * major + minor
    std::size_t shared_bytes; ///< most of dynamic shared memory that a block may ask for
    int multiprocessors;
    bool reads_pageable;      ///< kernels may read any memory of the host
    char name[256];
};

enum class Memory { unregistered, host, device, managed };

struct Pointer {
    Memory memory;
    int device;
};

/// What the library does with a kernel: each returns an error of CUDA.
struct Launcher {
    Error (*launch)(void* const* tensors, void* workspace, void* stream);
    Error (*load)();   ///< the code, for the current device
    Error (*unload)(); ///< the code, of all devices
};

Error get_device(int& device);
Error read_properties(int device, Properties& properties);
Error read_pointer(const void* pointer, Pointer& found);

} // namespace ekc::EKC_LIBRARY::runtime

#ifdef __GNUC__
#pragma GCC visibility pop
#endif

#endif
