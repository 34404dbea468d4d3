// reduce_argmax(X[5, 100] float16)
//   extreme[i0] = max[k1 < 100] X[i0, k1]
//   Y[p0] = min[q1 < 100] where(X[p0, q1] == extreme[p0], q1, where(X[p0, q1] == X[p0, q1], 100, q1))
// 
// Written by ekc VERSION from the schedule
//   ekc.Schedule(op)
//       .rfactor("q1", 2)
//       .split("k1", (32,))
//       .reorder("i0", "k1.1", "k1.0")
//       .bind("i0", "block.x")
//       .bind("k1.1", "thread.x")
//       .cache_write("extreme")
//       .split("p0", (4,))
//       .split("q1", (8, 4))
//       .reorder("q1_part", "p0.0", "p0.1", "q1.1", "q1.0", "q1.2")
//       .bind("q1_part", "block.y")
//       .bind("p0.0", "block.x")
//       .bind("p0.1", "thread.y")
//       .bind("q1.1", "thread.x")
//       .cache_write("Y_parts")
//       .cache_read("X", "register", at="q1.0", vector=2)
//       .cache_write("Y")
// digest d3f40ec43c058600
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

// grid 5 x 1 x 1, block 32 x 1 x 1
extern "C" __global__ void __launch_bounds__(32)
ekc_reduce_argmax_0(const half_t* __restrict__ X, half_t* __restrict__ ekc_extreme)
{
    alignas(16) float ekc_extreme_acc[1];
    const int i0 = blockIdx.x;
    const int k1_1 = threadIdx.x;
    ekc_extreme_acc[0] = __int_as_float(0xff800000);
    #pragma unroll 1
    for (int k1_0 = 0; k1_0 < 4; ++k1_0) {
        if (k1_0 * 32 + k1_1 < 100) ekc_extreme_acc[0] = maximum(ekc_extreme_acc[0], (k1_0 * 32 + k1_1 < 100 ? from_half(X[i0 * 100 + k1_0 * 32 + k1_1]) : 0.0f));
    }
    // max over 32 lanes
    #pragma unroll
    for (int lane = 16; lane > 0; lane /= 2) {
        ekc_extreme_acc[0] = maximum(ekc_extreme_acc[0], __shfl_xor_sync(0xffffffffu, ekc_extreme_acc[0], lane));
    }
    // write ekc_extreme_acc -> ekc_extreme
    if (k1_1 == 0) {
        ekc_extreme[i0] = to_half(ekc_extreme_acc[0]);
    }
}
// grid 2 x 2 x 1, block 8 x 4 x 1
extern "C" __global__ void __launch_bounds__(32)
ekc_reduce_argmax_1(const half_t* __restrict__ X, const half_t* __restrict__ ekc_extreme, int* __restrict__ ekc_Y_parts)
{
    alignas(16) int ekc_Y_parts_acc[1];
    const int ekc_q1_part = blockIdx.y;
    const int p0_0 = blockIdx.x;
    const int p0_1 = threadIdx.y;
    const int q1_1 = threadIdx.x;
    ekc_Y_parts_acc[0] = 2147483647;
    #pragma unroll 1
    for (int q1_0 = 0; q1_0 < 2; ++q1_0) {
        alignas(16) float X_register[4];
        #pragma unroll
        for (int q1_2 = 0; q1_2 < 4; q1_2 += 2) {
            {
                alignas(4) half_t packed[2] = {};
                if (p0_0 * 4 + p0_1 < 5 && ekc_q1_part * 50 + q1_0 * 32 + q1_1 * 4 + q1_2 < 100) *reinterpret_cast<unsigned int*>(&packed[0]) = *reinterpret_cast<const unsigned int*>(&X[(p0_0 * 4 + p0_1) * 100 + ekc_q1_part * 50 + q1_0 * 32 + q1_1 * 4 + q1_2]);
                X_register[q1_2] = from_half(packed[0]);
                X_register[q1_2 + 1] = from_half(packed[1]);
            }
        }
        #pragma unroll
        for (int q1_2 = 0; q1_2 < 4; ++q1_2) {
            if (q1_0 * 32 + q1_1 * 4 + q1_2 < 50) ekc_Y_parts_acc[0] = min(ekc_Y_parts_acc[0], (X_register[q1_2] == (p0_0 * 4 + p0_1 < 5 ? from_half(ekc_extreme[p0_0 * 4 + p0_1]) : 0.0f) ? static_cast<int>(ekc_q1_part) * 50 + static_cast<int>(q1_0 * 32 + q1_1 * 4 + q1_2) : (X_register[q1_2] == X_register[q1_2] ? 100 : static_cast<int>(ekc_q1_part) * 50 + static_cast<int>(q1_0 * 32 + q1_1 * 4 + q1_2))));
        }
    }
    // min over 8 lanes
    #pragma unroll
    for (int lane = 4; lane > 0; lane /= 2) {
        ekc_Y_parts_acc[0] = min(ekc_Y_parts_acc[0], __shfl_xor_sync(0xffffffffu, ekc_Y_parts_acc[0], lane));
    }
    // write ekc_Y_parts_acc -> ekc_Y_parts
    if (q1_1 == 0 && p0_0 * 4 + p0_1 < 5) {
        ekc_Y_parts[ekc_q1_part * 5 + p0_0 * 4 + p0_1] = ekc_Y_parts_acc[0];
    }
}
// grid 1 x 1 x 1, block 1 x 1 x 1
extern "C" __global__ void __launch_bounds__(1)
ekc_reduce_argmax_2(const int* __restrict__ ekc_Y_parts, int* __restrict__ Y)
{
    alignas(16) int Y_acc[1];
    #pragma unroll 1
    for (int ekc_p0_ = 0; ekc_p0_ < 5; ++ekc_p0_) {
        Y_acc[0] = 2147483647;
        #pragma unroll 1
        for (int ekc_q1_part_ = 0; ekc_q1_part_ < 2; ++ekc_q1_part_) {
            Y_acc[0] = min(Y_acc[0], ekc_Y_parts[ekc_q1_part_ * 5 + ekc_p0_]);
        }
        // write Y_acc -> Y
        Y[ekc_p0_] = Y_acc[0];
    }
}
