// act_D(A[13, 10] float32, B[10, 11] float32)
//   C[i, j] = max(A[i, j], 0) + 1
//   D[p, q] = sum[r < 10] C[p, r] * B[r, q]
// 
// Written by ekc VERSION from the schedule
//   ekc.Schedule(op)
//       .split("p", (4, 2))
//       .split("q", (8,))
//       .split("r", (4,))
//       .reorder("p.0", "q.0", "p.1", "q.1", "r.0", "r.1", "p.2")
//       .bind("p.0", "block.y")
//       .bind("q.0", "block.x")
//       .bind("p.1", "thread.y")
//       .bind("q.1", "thread.x")
//       .cache_write("D")
//       .compute_at("C", "r.0")
//       .cache_read("B", "shared", at="r.0")
// digest cda3abb3f7fca495
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

// grid 2 x 2 x 1, block 8 x 4 x 1
extern "C" __global__ void __launch_bounds__(32)
ekc_act_D(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ D)
{
    __shared__ __align__(16) float C_shared[8][4];
    __shared__ __align__(16) float B_shared[4][8];
    alignas(16) float D_acc[2];
    const int p_0 = blockIdx.y;
    const int q_0 = blockIdx.x;
    const int p_1 = threadIdx.y;
    const int q_1 = threadIdx.x;
    const int thread = threadIdx.y * 8 + threadIdx.x;
    #pragma unroll
    for (int p_2 = 0; p_2 < 2; ++p_2) {
        D_acc[p_2] = 0.0f;
    }
    #pragma unroll 1
    for (int r_0 = 0; r_0 < 3; ++r_0) {
        // compute C[p_0 * 8 : 8, r_0 * 4 : 4] -> C_shared
        #pragma unroll
        for (int round = 0; round < 1; ++round) {
            const int element = round * 32 + thread;
            const int p = element / 4;
            const int r = element % 4;
            C_shared[p][r] = (p_0 * 8 + p < 13 && r_0 * 4 + r < 10) ? maximum((p_0 * 8 + p < 13 && r_0 * 4 + r < 10 ? A[(p_0 * 8 + p) * 10 + r_0 * 4 + r] : 0.0f), 0.0f) + 1.0f : 0.0f;
        }
        // stage B[r_0 * 4 : 4, q_0 * 8 : 8] -> B_shared
        #pragma unroll
        for (int round = 0; round < 1; ++round) {
            const int element = round * 32 + thread;
            const int r = element / 8;
            const int q = element % 8;
            B_shared[r][q] = (r_0 * 4 + r < 10 && q_0 * 8 + q < 11) ? B[(r_0 * 4 + r) * 11 + q_0 * 8 + q] : 0.0f;
        }
        __syncthreads();
        #pragma unroll 1
        for (int r_1 = 0; r_1 < 4; ++r_1) {
            #pragma unroll
            for (int p_2 = 0; p_2 < 2; ++p_2) {
                D_acc[p_2] += C_shared[p_1 * 2 + p_2][r_1] * B_shared[r_1][q_1];
            }
        }
        __syncthreads();
    }
    // write D_acc -> D
    #pragma unroll
    for (int p_2 = 0; p_2 < 2; ++p_2) {
        if (p_0 * 8 + p_1 * 2 + p_2 < 13 && q_0 * 8 + q_1 < 11) {
            D[(p_0 * 8 + p_1 * 2 + p_2) * 11 + q_0 * 8 + q_1] = D_acc[p_2];
        }
    }
}
