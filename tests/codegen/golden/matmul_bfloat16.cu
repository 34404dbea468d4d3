// matmul(A[33, 12] bfloat16, B[12, 34] bfloat16)
//   C[i, j] = sum[k < 12] A[i, k] * B[k, j]
// 
// Written by ekc VERSION from the schedule
//   ekc.Schedule(op)
//       .split("i", (2, 4, 2))
//       .split("j", (2, 8, 2))
//       .split("k", (4,))
//       .reorder("i.0", "j.0", "k.0", "i.2", "j.2", "k.1", "i.1", "i.3", "j.1", "j.3")
//       .bind("i.0", "block.y")
//       .bind("j.0", "block.x")
//       .bind("i.2", "thread.y")
//       .bind("j.2", "thread.x")
//       .bind("i.1", "vthread")
//       .bind("j.1", "vthread")
//       .cache_write("C", vector=2)
//       .cache_read("A", "shared", at="k.0", vector=2, order=(1, 0), pad=2)
//       .cache_read("B", "shared", at="k.0", vector=2)
//       .cache_read("A.shared", "register", at="k.1", vector=2)
//       .cache_read("B.shared", "register", at="k.1", vector=2)
//       .unroll("k.1", factor=2)
//       .pipeline("k.0")
// digest e194269f9590958d
// A bfloat16 in memory: the upper half of a float. Arithmetic is done in float; no header is needed.
struct __align__(2) bf16_t {
    unsigned short bits;
};
static __device__ __forceinline__ float from_bf16(bf16_t h)
{
    return __int_as_float(static_cast<int>(h.bits) << 16);
}
static __device__ __forceinline__ bf16_t to_bf16(float f)
{
    bf16_t h;
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h.bits) : "f"(f));
#else
    // To nearest even, by hand; NaN becomes the one that the instruction gives.
    const unsigned int bits = __float_as_uint(f);
    h.bits = f == f ? (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16 : 0x7fffu;
#endif
    return h;
}

// grid 2 x 3 x 1, block 8 x 4 x 1
extern "C" __global__ void __launch_bounds__(32)
ekc_matmul(const bf16_t* __restrict__ A, const bf16_t* __restrict__ B, bf16_t* __restrict__ C)
{
    __shared__ __align__(16) bf16_t A_shared[2][4][18];
    __shared__ __align__(16) bf16_t B_shared[2][4][32];
    alignas(16) float C_acc[2][2][2][2];
    const int i_0 = blockIdx.y;
    const int j_0 = blockIdx.x;
    const int i_2 = threadIdx.y;
    const int j_2 = threadIdx.x;
    const int thread = threadIdx.y * 8 + threadIdx.x;
    #pragma unroll
    for (int i_1 = 0; i_1 < 2; ++i_1) {
        #pragma unroll
        for (int i_3 = 0; i_3 < 2; ++i_3) {
            #pragma unroll
            for (int j_1 = 0; j_1 < 2; ++j_1) {
                #pragma unroll
                for (int j_3 = 0; j_3 < 2; ++j_3) {
                    C_acc[i_1][i_3][j_1][j_3] = 0.0f;
                }
            }
        }
    }
    alignas(16) bf16_t A_shared_next[2];
    alignas(16) bf16_t B_shared_next[4];
    {
        constexpr int k_0 = 0;
        // fetch A[i_0 * 16 : 16, k_0 * 4 : 4]
        #pragma unroll
        for (int round = 0; round < 1; ++round) {
            const int element = (round * 32 + thread) * 2;
            const int i = element / 4;
            const int k = element % 4;
            A_shared_next[round * 2 + 0] = bf16_t{0};
            A_shared_next[round * 2 + 1] = bf16_t{0};
            if (i_0 * 16 + i < 33) *reinterpret_cast<unsigned int*>(&A_shared_next[round * 2]) = *reinterpret_cast<const unsigned int*>(&A[(i_0 * 16 + i) * 12 + k_0 * 4 + k]);
        }
        // fetch B[k_0 * 4 : 4, j_0 * 32 : 32]
        #pragma unroll
        for (int round = 0; round < 2; ++round) {
            const int element = (round * 32 + thread) * 2;
            const int k = element / 32;
            const int j = element % 32;
            B_shared_next[round * 2 + 0] = bf16_t{0};
            B_shared_next[round * 2 + 1] = bf16_t{0};
            if (j_0 * 32 + j < 34) *reinterpret_cast<unsigned int*>(&B_shared_next[round * 2]) = *reinterpret_cast<const unsigned int*>(&B[(k_0 * 4 + k) * 34 + j_0 * 32 + j]);
        }
        // store it in A_shared
        #pragma unroll
        for (int round = 0; round < 1; ++round) {
            const int element = (round * 32 + thread) * 2;
            const int i = element / 4;
            const int k = element % 4;
            A_shared[k_0 % 2][k][i] = A_shared_next[round * 2 + 0];
            A_shared[k_0 % 2][k + 1][i] = A_shared_next[round * 2 + 1];
        }
        // store it in B_shared
        #pragma unroll
        for (int round = 0; round < 2; ++round) {
            const int element = (round * 32 + thread) * 2;
            const int k = element / 32;
            const int j = element % 32;
            *reinterpret_cast<unsigned int*>(&B_shared[k_0 % 2][k][j]) = *reinterpret_cast<const unsigned int*>(&B_shared_next[round * 2]);
        }
    }
    __syncthreads();
    #pragma unroll 1
    for (int k_0_now = 0; k_0_now < 3; ++k_0_now) {
        if (k_0_now + 1 < 3) {
            const int k_0 = k_0_now + 1;
            // fetch A[i_0 * 16 : 16, k_0 * 4 : 4]
            #pragma unroll
            for (int round = 0; round < 1; ++round) {
                const int element = (round * 32 + thread) * 2;
                const int i = element / 4;
                const int k = element % 4;
                A_shared_next[round * 2 + 0] = bf16_t{0};
                A_shared_next[round * 2 + 1] = bf16_t{0};
                if (i_0 * 16 + i < 33) *reinterpret_cast<unsigned int*>(&A_shared_next[round * 2]) = *reinterpret_cast<const unsigned int*>(&A[(i_0 * 16 + i) * 12 + k_0 * 4 + k]);
            }
            // fetch B[k_0 * 4 : 4, j_0 * 32 : 32]
            #pragma unroll
            for (int round = 0; round < 2; ++round) {
                const int element = (round * 32 + thread) * 2;
                const int k = element / 32;
                const int j = element % 32;
                B_shared_next[round * 2 + 0] = bf16_t{0};
                B_shared_next[round * 2 + 1] = bf16_t{0};
                if (j_0 * 32 + j < 34) *reinterpret_cast<unsigned int*>(&B_shared_next[round * 2]) = *reinterpret_cast<const unsigned int*>(&B[(k_0 * 4 + k) * 34 + j_0 * 32 + j]);
            }
        }
        {
            const int k_0 = k_0_now;
            #pragma unroll 2
            for (int k_1 = 0; k_1 < 4; ++k_1) {
                alignas(16) float A_register[2][2];
                #pragma unroll
                for (int i_1 = 0; i_1 < 2; ++i_1) {
                    {
                        alignas(4) bf16_t packed[2] = {};
                        *reinterpret_cast<unsigned int*>(&packed[0]) = *reinterpret_cast<const unsigned int*>(&A_shared[k_0 % 2][k_1][i_2 * 2 + i_1 * 8]);
                        A_register[i_1][0] = from_bf16(packed[0]);
                        A_register[i_1][1] = from_bf16(packed[1]);
                    }
                }
                alignas(16) float B_register[2][2];
                #pragma unroll
                for (int j_1 = 0; j_1 < 2; ++j_1) {
                    {
                        alignas(4) bf16_t packed[2] = {};
                        *reinterpret_cast<unsigned int*>(&packed[0]) = *reinterpret_cast<const unsigned int*>(&B_shared[k_0 % 2][k_1][j_2 * 2 + j_1 * 16]);
                        B_register[j_1][0] = from_bf16(packed[0]);
                        B_register[j_1][1] = from_bf16(packed[1]);
                    }
                }
                #pragma unroll
                for (int i_1 = 0; i_1 < 2; ++i_1) {
                    #pragma unroll
                    for (int i_3 = 0; i_3 < 2; ++i_3) {
                        #pragma unroll
                        for (int j_1 = 0; j_1 < 2; ++j_1) {
                            #pragma unroll
                            for (int j_3 = 0; j_3 < 2; ++j_3) {
                                C_acc[i_1][i_3][j_1][j_3] += A_register[i_1][i_3] * B_register[j_1][j_3];
                            }
                        }
                    }
                }
            }
        }
        if (k_0_now + 1 < 3) {
            const int k_0 = k_0_now + 1;
            // store it in A_shared
            #pragma unroll
            for (int round = 0; round < 1; ++round) {
                const int element = (round * 32 + thread) * 2;
                const int i = element / 4;
                const int k = element % 4;
                A_shared[k_0 % 2][k][i] = A_shared_next[round * 2 + 0];
                A_shared[k_0 % 2][k + 1][i] = A_shared_next[round * 2 + 1];
            }
            // store it in B_shared
            #pragma unroll
            for (int round = 0; round < 2; ++round) {
                const int element = (round * 32 + thread) * 2;
                const int k = element / 32;
                const int j = element % 32;
                *reinterpret_cast<unsigned int*>(&B_shared[k_0 % 2][k][j]) = *reinterpret_cast<const unsigned int*>(&B_shared_next[round * 2]);
            }
        }
        __syncthreads();
    }
    // write C_acc -> C
    #pragma unroll
    for (int i_1 = 0; i_1 < 2; ++i_1) {
        #pragma unroll
        for (int i_3 = 0; i_3 < 2; ++i_3) {
            #pragma unroll
            for (int j_1 = 0; j_1 < 2; ++j_1) {
                if (i_0 * 16 + i_2 * 2 + i_1 * 8 + i_3 < 33 && j_0 * 32 + j_2 * 2 + j_1 * 16 < 34) {
                    {
                        alignas(4) const bf16_t packed[2] = { to_bf16(C_acc[i_1][i_3][j_1][0]), to_bf16(C_acc[i_1][i_3][j_1][1]) };
                        *reinterpret_cast<unsigned int*>(&C[(i_0 * 16 + i_2 * 2 + i_1 * 8 + i_3) * 34 + j_0 * 32 + j_2 * 2 + j_1 * 16]) = *reinterpret_cast<const unsigned int*>(&packed[0]);
                    }
                }
            }
        }
    }
}
