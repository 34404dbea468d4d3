// Calls a kernel that ekc exported, compares the result with the CPU, and prints the time of one call.
//
// kernels/matmul.h and kernels/matmul.cu are made by `make kernels` (or by CMake): C = A B, 256 x 256 float32.

#include "matmul.h"

#include <cuda_runtime.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

constexpr int size = 256;
constexpr int calls = 100;

void check(int status, const char* what)
{
    if (status != cudaSuccess) {
        std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(static_cast<cudaError_t>(status)));
        std::exit(1);
    }
}

// A tensor on the GPU. cudaMalloc aligns it as the launcher requires.
struct DeviceTensor {
    explicit DeviceTensor(std::size_t bytes) { check(cudaMalloc(&pointer, bytes), "cudaMalloc"); }
    ~DeviceTensor() { cudaFree(pointer); }
    DeviceTensor(const DeviceTensor&) = delete;
    DeviceTensor& operator=(const DeviceTensor&) = delete;
    void* pointer = nullptr;
};

float compute_element(const std::vector<float>& a, const std::vector<float>& b, int i, int j)
{
    float sum = 0.0f;
    for (int k = 0; k < size; ++k) {
        sum += a[i * size + k] * b[k * size + j];
    }
    return sum;
}

} // namespace

int main()
{
    constexpr std::size_t bytes = sizeof(float) * size * size;
    std::vector<float> a(size * size), b(size * size), c(size * size);
    for (int n = 0; n < size * size; ++n) {
        a[n] = static_cast<float>(n % 7) - 3.0f;
        b[n] = static_cast<float>(n % 5) - 2.0f;
    }

    DeviceTensor a_gpu(bytes), b_gpu(bytes), c_gpu(bytes);
    // Some kernels keep intermediate results in a workspace; this one may need 0 bytes.
    DeviceTensor workspace(ekc_matmul_workspace_bytes() + 1);
    check(cudaMemcpy(a_gpu.pointer, a.data(), bytes, cudaMemcpyHostToDevice), "copy of A");
    check(cudaMemcpy(b_gpu.pointer, b.data(), bytes, cudaMemcpyHostToDevice), "copy of B");

    cudaStream_t stream;
    cudaEvent_t start, stop;
    check(cudaStreamCreate(&stream), "stream");
    check(cudaEventCreate(&start), "event");
    check(cudaEventCreate(&stop), "event");
    const auto launch = [&] {
        check(ekc_matmul_launch(a_gpu.pointer, b_gpu.pointer, c_gpu.pointer, workspace.pointer, stream), "launch");
    };

    launch();
    check(cudaEventRecord(start, stream), "event");
    for (int n = 0; n < calls; ++n) {
        launch();
    }
    check(cudaEventRecord(stop, stream), "event");
    check(cudaStreamSynchronize(stream), "kernel");
    float milliseconds = 0.0f;
    check(cudaEventElapsedTime(&milliseconds, start, stop), "time");
    check(cudaMemcpy(c.data(), c_gpu.pointer, bytes, cudaMemcpyDeviceToHost), "copy of C");

    float error = 0.0f;
    for (int i = 0; i < size; ++i) {
        for (int j = 0; j < size; ++j) {
            error = std::fmax(error, std::fabs(c[i * size + j] - compute_element(a, b, i, j)));
        }
    }
    std::printf("%.2f us a call, largest error %g\n", 1e3 * milliseconds / calls, error);
    return error < 1e-3f ? 0 : 1;
}
