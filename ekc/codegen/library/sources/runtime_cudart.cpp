// SPDX-License-Identifier: 0BSD
// What a library asks of the CUDA runtime.
#include "runtime.h"

#include <cstring>

#include <cuda_runtime_api.h>

namespace ekc::EKC_LIBRARY::runtime {

static_assert(cudaErrorInsufficientDriver == no_driver, "cudaError_t has other values");
static_assert(cudaErrorNoDevice == no_device, "cudaError_t has other values");
static_assert(cudaErrorNoKernelImageForDevice == no_kernel_image, "cudaError_t has other values");

Error get_device(int& device)
{
    return cudaGetDevice(&device);
}

Error read_properties(int device, Properties& properties)
{
    cudaDeviceProp found{};
    const cudaError_t error = cudaGetDeviceProperties(&found, device);
    if (error == cudaSuccess) {
        properties.capability = 10 * found.major + found.minor;
        properties.shared_bytes = found.sharedMemPerBlockOptin;
        properties.multiprocessors = found.multiProcessorCount;
        properties.reads_pageable = found.pageableMemoryAccess != 0;
        std::memcpy(properties.name, found.name, sizeof properties.name);
        properties.name[sizeof properties.name - 1] = '\0';
    }
    return error;
}

Error read_pointer(const void* pointer, Pointer& found)
{
    cudaPointerAttributes attributes{};
    const cudaError_t error = cudaPointerGetAttributes(&attributes, pointer);
    if (error == cudaSuccess) {
        found.device = attributes.device;
        found.memory = attributes.type == cudaMemoryTypeDevice    ? Memory::device
                       : attributes.type == cudaMemoryTypeManaged ? Memory::managed
                       : attributes.type == cudaMemoryTypeHost    ? Memory::host
                                                                  : Memory::unregistered;
    }
    return error;
}

} // namespace ekc::EKC_LIBRARY::runtime
