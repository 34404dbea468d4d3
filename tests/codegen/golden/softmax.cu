// softmax(X[1000, 1000] float16)
//   top[i0] = max[i1 < 1000] X[i0, i1]
//   total[j0] = sum[j1 < 1000] exp(X[j0, j1] - top[j0])
//   Y[p0, p1] = exp(X[p0, p1] - top[p0]) / total[p0]
// 
// Written by ekc VERSION from the schedule
//   ekc.Schedule(op)
//       .split("p0", (4,))
//       .split("p1", (64, 4))
//       .reorder("p0.0", "p0.1", "p1.1", "p1.0", "p1.2")
//       .bind("p0.0", "block.x")
//       .bind("p0.1", "thread.x")
//       .bind("p1.1", "thread.x")
//       .cache_read("X", "shared", vector=4, reader="Y")
//       .compute_at("total", None, warps=2)
//       .compute_at("top", None, warps=2)
//       .cache_read("X.shared", "register", at="p1.0", vector=4)
//       .vectorize("p1.2")
// digest 9f4270c04fc384e9
// A float16 in memory. Arithmetic is done in float; no header is needed.
struct __align__(2) half_t {
    unsigned short bits;
};
static __device__ __forceinline__ float from_half(half_t h)
{
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h.bits));
    return f;
}
static __device__ __forceinline__ half_t to_half(float f)
{
    half_t h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h.bits) : "f"(f));
    return h;
}

// The larger of two values, NaN where either is; fmaxf returns the number beside a NaN.
static __device__ __forceinline__ float maximum(float a, float b)
{
#if __CUDA_ARCH__ >= 800
    float chosen;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(chosen) : "f"(a), "f"(b));
    return chosen;
#else
    const float number = fmaxf(a, b);
    return a == a && b == b ? number : __int_as_float(0x7fffffff);
#endif
}

// grid 250 x 1 x 1, block 256 x 1 x 1
extern "C" __global__ void __launch_bounds__(256)
ekc_softmax(const half_t* __restrict__ X, half_t* __restrict__ Y)
{
    __shared__ __align__(16) half_t X_shared[4][1024];
    __shared__ __align__(16) float ekc_total_shared[2][4];
    __shared__ __align__(16) float ekc_top_shared[2][4];
    alignas(16) float Y_acc[4];
    const int p0_0 = blockIdx.x;
    const int p0_1 = threadIdx.x / 64;
    const int p1_1 = threadIdx.x % 64;
    const int thread = threadIdx.x;
    // stage X[p0_0 * 4 : 4, 0 : 1024] -> X_shared
    #pragma unroll
    for (int round = 0; round < 4; ++round) {
        const int element = (round * 256 + thread) * 4;
        const int p0 = element / 1024;
        const int d1 = element % 1024;
        {
            alignas(8) half_t packed[4] = {};
            if (d1 < 1000) *reinterpret_cast<uint2*>(&packed[0]) = *reinterpret_cast<const uint2*>(&X[(p0_0 * 4 + p0) * 1000 + d1]);
            *reinterpret_cast<uint2*>(&X_shared[p0][d1]) = *reinterpret_cast<const uint2*>(&packed[0]);
        }
    }
    __syncthreads();
    // max at top[p0_0 * 4 : 4] -> ekc_top_shared, 2 warps an element
    #pragma unroll 1
    for (int round = 0; round < 1; ++round) {
        const int element = round * 4 + thread / 64;
        const int p0 = element;
        float accumulator = __int_as_float(0xff800000);
        #pragma unroll 8
        for (int step = 0; step < 16; ++step) {
            const int i1 = step * 64 + thread % 64;
            if (i1 < 1000) accumulator = maximum(accumulator, from_half(X_shared[p0][i1]));
        }
        #pragma unroll
        for (int lane = 16; lane > 0; lane /= 2) {
            accumulator = maximum(accumulator, __shfl_xor_sync(0xffffffffu, accumulator, lane));
        }
        if (thread % 32 == 0) {
            ekc_top_shared[thread / 32 % 2][p0] = accumulator;
        }
    }
    __syncthreads();
    for (int round = 0; round < 1; ++round) {
        const int element = round * 256 + thread;
        if (element < 4) {
            const int p0 = element;
            float accumulator = ekc_top_shared[0][p0];
            #pragma unroll
            for (int part = 1; part < 2; ++part) {
                accumulator = maximum(accumulator, ekc_top_shared[part][p0]);
            }
            ekc_top_shared[0][p0] = accumulator;
        }
    }
    __syncthreads();
    // sum at total[p0_0 * 4 : 4] -> ekc_total_shared, 2 warps an element
    #pragma unroll 1
    for (int round = 0; round < 1; ++round) {
        const int element = round * 4 + thread / 64;
        const int p0 = element;
        float accumulator = 0.0f;
        #pragma unroll 8
        for (int step = 0; step < 16; ++step) {
            const int j1 = step * 64 + thread % 64;
            if (j1 < 1000) accumulator += expf(from_half(X_shared[p0][j1]) - ekc_top_shared[0][p0]);
        }
        #pragma unroll
        for (int lane = 16; lane > 0; lane /= 2) {
            accumulator += __shfl_xor_sync(0xffffffffu, accumulator, lane);
        }
        if (thread % 32 == 0) {
            ekc_total_shared[thread / 32 % 2][p0] = accumulator;
        }
    }
    __syncthreads();
    for (int round = 0; round < 1; ++round) {
        const int element = round * 256 + thread;
        if (element < 4) {
            const int p0 = element;
            float accumulator = ekc_total_shared[0][p0];
            #pragma unroll
            for (int part = 1; part < 2; ++part) {
                accumulator += ekc_total_shared[part][p0];
            }
            ekc_total_shared[0][p0] = accumulator;
        }
    }
    __syncthreads();
    #pragma unroll 1
    for (int p1_0 = 0; p1_0 < 4; ++p1_0) {
        alignas(16) float X_register[4];
        {
            alignas(8) half_t packed[4] = {};
            *reinterpret_cast<uint2*>(&packed[0]) = *reinterpret_cast<const uint2*>(&X_shared[p0_1][p1_0 * 256 + p1_1 * 4]);
            X_register[0] = from_half(packed[0]);
            X_register[1] = from_half(packed[1]);
            X_register[2] = from_half(packed[2]);
            X_register[3] = from_half(packed[3]);
        }
        #pragma unroll
        for (int p1_2 = 0; p1_2 < 4; ++p1_2) {
            Y_acc[p1_2] = expf(X_register[p1_2] - ekc_top_shared[0][p0_1]) / ekc_total_shared[0][p0_1];
        }
        // write Y_acc -> Y
        if (p1_0 * 256 + p1_1 * 4 < 1000) {
            {
                alignas(8) const half_t packed[4] = { to_half(Y_acc[0]), to_half(Y_acc[1]), to_half(Y_acc[2]), to_half(Y_acc[3]) };
                *reinterpret_cast<uint2*>(&Y[(p0_0 * 4 + p0_1) * 1000 + p1_0 * 256 + p1_1 * 4]) = *reinterpret_cast<const uint2*>(&packed[0]);
            }
        }
    }
}
