// Uses a library that ekc wrote: lists its kernels, asks which one a GPU would get, and calls one.
//
// `make run` makes the library `kernels` (a product and a softmax in float32) and runs this. With WITH_CUDA the GPU
// computes the product, which is compared with the CPU. Exit status: 0 if all is right or no kernel runs on this
// machine, 1 if a call fails or the product is wrong.

#include <ekc/kernels.hpp>

#include <cstdio>

#ifdef WITH_CUDA
#include <cmath>
#include <memory>
#include <stdexcept>
#include <vector>

#include <cuda_runtime.h>
#endif

namespace {

using namespace ekc::kernels;

// C[i, j] = sum of A[i, k] B[k, j] for i < M, j < N, k < K. The library has kernels for these extents alone.
constexpr std::size_t M = 256, N = 128, K = 64;
constexpr matmul_float32_extents product{M, N, K};
constexpr Device a100{80, "NVIDIA A100-SXM4-80GB"}, h100{90, "NVIDIA H100 80GB HBM3"}, t4{75, "Tesla T4"};

// A row-major matrix in GPU memory. A call compares extents and bytes with those of the operator.
template <class T>
View<T, 2> make_view(T* data, std::size_t height, std::size_t width)
{
    return {data, {static_cast<std::int64_t>(height), static_cast<std::int64_t>(width)}, height * width * sizeof(T)};
}

void print_status(const char* what, const Status& status)
{
    std::printf("  %-25s %s: %s\n", what, status.name(), status.text());
}

void print_kernel(const char* what, const Info& kernel)
{
    std::printf(
        "  %-25s %-15s %9.3f us %9.2f uJ  %s, %s\n", what, kernel.function_name, 1e6 * kernel.latency_s,
        1e6 * kernel.energy_j, kernel.board, kernel.source);
}

void print_choice(const char* what, const Status& status, const Info& kernel)
{
    if (status) {
        print_kernel(what, kernel);
    } else {
        print_status(what, status);
    }
}

// The selection makes no CUDA call: it answers for any GPU.
void print_choices()
{
    Info found;
    Options fast, lean, exact;
    fast.prefer = Prefer::latency;
    lean.prefer = Prefer::energy; // the default
    lean.max_slowdown = 0.1;      // at most 10 % slower than the fastest
    exact.exact_only = true;
    std::printf("Selected for a GPU:\n");
    print_choice("A100, least latency", matmul_float32_select(product, a100, found, fast), found);
    print_choice("A100, least energy", matmul_float32_select(product, a100, found, lean), found);
    print_choice("H100", matmul_float32_select(product, h100, found), found);
    print_choice("H100, tuned for it only", matmul_float32_select(product, h100, found, exact), found);
    print_choice("T4", matmul_float32_select(product, t4, found), found);
}

// Refused before anything runs. Pointers of another type do not even compile.
void print_refusals()
{
    float* const none = nullptr;
    const auto a = make_view(none, M, K), b = make_view(none, K, N), c = make_view(none, M, N);
    const View<float, 2> too_small{none, c.extents, c.bytes / 2};
    std::printf("Refused:\n");
    print_status("extents without a kernel", matmul_float32({M, N, K - 1}, a, b, c));
    print_status("A and B swapped", matmul_float32(product, b, a, c));
    print_status("too little memory for C", matmul_float32(product, a, b, too_small));
    print_status("null pointers", matmul_float32(product, none, none, none));
}

#ifdef WITH_CUDA
void must(cudaError_t error)
{
    if (error != cudaSuccess) {
        throw std::runtime_error{cudaGetErrorString(error)};
    }
}

void must(const Status& status)
{
    if (!status) {
        throw std::runtime_error{status.text()};
    }
}

struct Release {
    void operator()(float* pointer) const { cudaFree(pointer); }
};

// A copy in GPU memory, which cudaMalloc aligns as the kernels require.
std::unique_ptr<float, Release> copy_to_gpu(const std::vector<float>& values)
{
    void* pointer = nullptr;
    must(cudaMalloc(&pointer, values.size() * sizeof(float)));
    std::unique_ptr<float, Release> copy{static_cast<float*>(pointer)};
    must(cudaMemcpy(pointer, values.data(), values.size() * sizeof(float), cudaMemcpyHostToDevice));
    return copy;
}

// The largest difference between the products of the GPU and of the CPU.
float multiply()
{
    std::vector<float> a(M * K), b(K * N), c(M * N);
    for (std::size_t n = 0; n < M * K; ++n) {
        a[n] = static_cast<float>(n % 7) - 3.0f;
    }
    for (std::size_t n = 0; n < K * N; ++n) {
        b[n] = static_cast<float>(n % 5) - 2.0f;
    }
    std::size_t workspace_bytes = 0; // for intermediate results; most kernels need none
    must(matmul_float32_workspace_bytes(product, workspace_bytes));
    const auto a_gpu = copy_to_gpu(a), b_gpu = copy_to_gpu(b), c_gpu = copy_to_gpu(c);
    const auto workspace = copy_to_gpu(std::vector<float>(workspace_bytes / sizeof(float) + 1));
    cudaStream_t stream = nullptr;
    must(cudaStreamCreate(&stream));
    // The call queues the kernel on the stream and returns.
    must(matmul_float32(
        product, make_view(a_gpu.get(), M, K), make_view(b_gpu.get(), K, N), make_view(c_gpu.get(), M, N),
        {workspace.get(), workspace_bytes}, stream));
    must(cudaStreamSynchronize(stream));
    must(cudaMemcpy(c.data(), c_gpu.get(), M * N * sizeof(float), cudaMemcpyDeviceToHost));
    must(cudaStreamDestroy(stream));
    float error = 0.0f;
    for (std::size_t i = 0; i < M; ++i) {
        for (std::size_t j = 0; j < N; ++j) {
            float sum = 0.0f;
            for (std::size_t k = 0; k < K; ++k) {
                sum += a[i * K + k] * b[k * N + j];
            }
            error = std::fmax(error, std::fabs(c[i * N + j] - sum));
        }
    }
    return error;
}
#endif

} // namespace

int main()
{
    std::printf("Kernels of the library:\n");
    for (const Info& kernel : list()) {
        print_kernel(kernel.role, kernel);
    }
    print_choices();
    print_refusals();

    std::printf("On this machine:\n");
    Info kernel;
    const Status status = matmul_float32_info(product, kernel);
    print_choice("the product", status, kernel);
    if (!status) {
        return status.code() == Code::no_gpu || status.code() == Code::no_kernel_for_device ? 0 : 1;
    }
#ifdef WITH_CUDA
    try {
        const float error = multiply();
        std::printf("  largest error of the product: %g\n", static_cast<double>(error));
        return error < 1e-3f ? 0 : 1;
    } catch (const std::runtime_error& problem) {
        std::printf("  the product: %s\n", problem.what());
        return 1;
    }
#else
    std::printf("  built without WITH_CUDA: the product is not computed\n");
#endif
}
