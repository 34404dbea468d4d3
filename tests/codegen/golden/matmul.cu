// matmul(A[4096, 4096] float32, B[4096, 4096] float32)
//   C[i, j] = sum[k < 4096] A[i, k] * B[k, j]
// 
// Written by ekc VERSION from the schedule
//   ekc.Schedule(op)
//       .split("i", (2, 16, 4))
//       .split("j", (2, 16, 4))
//       .split("k", (8,))
//       .reorder("i.0", "j.0", "k.0", "i.2", "j.2", "k.1", "i.1", "i.3", "j.1", "j.3")
//       .bind("i.0", "block.y")
//       .bind("j.0", "block.x")
//       .bind("i.2", "thread.y")
//       .bind("j.2", "thread.x")
//       .bind("i.1", "vthread")
//       .bind("j.1", "vthread")
//       .cache_write("C", vector=4)
//       .cache_read("A", "shared", at="k.0", vector=4, order=(1, 0), pad=4)
//       .cache_read("B", "shared", at="k.0", vector=4)
//       .cache_read("A.shared", "register", at="k.1", vector=4)
//       .cache_read("B.shared", "register", at="k.1", vector=4)
//       .unroll("k.1")
//       .pipeline("k.0")
// digest fcd6636ae051c070
// grid 32 x 32 x 1, block 16 x 16 x 1
extern "C" __global__ void __launch_bounds__(256)
ekc_matmul(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C)
{
    __shared__ __align__(16) float A_shared[2][8][132];
    __shared__ __align__(16) float B_shared[2][8][128];
    alignas(16) float C_acc[2][4][2][4];
    const int i_0 = blockIdx.y;
    const int j_0 = blockIdx.x;
    const int i_2 = threadIdx.y;
    const int j_2 = threadIdx.x;
    const int thread = threadIdx.y * 16 + threadIdx.x;
    #pragma unroll
    for (int i_1 = 0; i_1 < 2; ++i_1) {
        #pragma unroll
        for (int i_3 = 0; i_3 < 4; ++i_3) {
            #pragma unroll
            for (int j_1 = 0; j_1 < 2; ++j_1) {
                #pragma unroll
                for (int j_3 = 0; j_3 < 4; ++j_3) {
                    C_acc[i_1][i_3][j_1][j_3] = 0.0f;
                }
            }
        }
    }
    alignas(16) float A_shared_next[4];
    alignas(16) float B_shared_next[4];
    {
        constexpr int k_0 = 0;
        // fetch A[i_0 * 128 : 128, k_0 * 8 : 8]
        #pragma unroll
        for (int round = 0; round < 1; ++round) {
            const int element = (round * 256 + thread) * 4;
            const int i = element / 8;
            const int k = element % 8;
            *reinterpret_cast<float4*>(&A_shared_next[round * 4]) = *reinterpret_cast<const float4*>(&A[(i_0 * 128 + i) * 4096 + k_0 * 8 + k]);
        }
        // fetch B[k_0 * 8 : 8, j_0 * 128 : 128]
        #pragma unroll
        for (int round = 0; round < 1; ++round) {
            const int element = (round * 256 + thread) * 4;
            const int k = element / 128;
            const int j = element % 128;
            *reinterpret_cast<float4*>(&B_shared_next[round * 4]) = *reinterpret_cast<const float4*>(&B[(k_0 * 8 + k) * 4096 + j_0 * 128 + j]);
        }
        // store it in A_shared
        #pragma unroll
        for (int round = 0; round < 1; ++round) {
            const int element = (round * 256 + thread) * 4;
            const int i = element / 8;
            const int k = element % 8;
            A_shared[k_0 % 2][k][i] = A_shared_next[round * 4 + 0];
            A_shared[k_0 % 2][k + 1][i] = A_shared_next[round * 4 + 1];
            A_shared[k_0 % 2][k + 2][i] = A_shared_next[round * 4 + 2];
            A_shared[k_0 % 2][k + 3][i] = A_shared_next[round * 4 + 3];
        }
        // store it in B_shared
        #pragma unroll
        for (int round = 0; round < 1; ++round) {
            const int element = (round * 256 + thread) * 4;
            const int k = element / 128;
            const int j = element % 128;
            *reinterpret_cast<float4*>(&B_shared[k_0 % 2][k][j]) = *reinterpret_cast<const float4*>(&B_shared_next[round * 4]);
        }
    }
    __syncthreads();
    #pragma unroll 1
    for (int k_0_now = 0; k_0_now < 512; ++k_0_now) {
        if (k_0_now + 1 < 512) {
            const int k_0 = k_0_now + 1;
            // fetch A[i_0 * 128 : 128, k_0 * 8 : 8]
            #pragma unroll
            for (int round = 0; round < 1; ++round) {
                const int element = (round * 256 + thread) * 4;
                const int i = element / 8;
                const int k = element % 8;
                *reinterpret_cast<float4*>(&A_shared_next[round * 4]) = *reinterpret_cast<const float4*>(&A[(i_0 * 128 + i) * 4096 + k_0 * 8 + k]);
            }
            // fetch B[k_0 * 8 : 8, j_0 * 128 : 128]
            #pragma unroll
            for (int round = 0; round < 1; ++round) {
                const int element = (round * 256 + thread) * 4;
                const int k = element / 128;
                const int j = element % 128;
                *reinterpret_cast<float4*>(&B_shared_next[round * 4]) = *reinterpret_cast<const float4*>(&B[(k_0 * 8 + k) * 4096 + j_0 * 128 + j]);
            }
        }
        {
            const int k_0 = k_0_now;
            #pragma unroll
            for (int k_1 = 0; k_1 < 8; ++k_1) {
                alignas(16) float A_register[2][4];
                #pragma unroll
                for (int i_1 = 0; i_1 < 2; ++i_1) {
                    *reinterpret_cast<float4*>(&A_register[i_1][0]) = *reinterpret_cast<const float4*>(&A_shared[k_0 % 2][k_1][i_2 * 4 + i_1 * 64]);
                }
                alignas(16) float B_register[2][4];
                #pragma unroll
                for (int j_1 = 0; j_1 < 2; ++j_1) {
                    *reinterpret_cast<float4*>(&B_register[j_1][0]) = *reinterpret_cast<const float4*>(&B_shared[k_0 % 2][k_1][j_2 * 4 + j_1 * 64]);
                }
                #pragma unroll
                for (int i_1 = 0; i_1 < 2; ++i_1) {
                    #pragma unroll
                    for (int i_3 = 0; i_3 < 4; ++i_3) {
                        #pragma unroll
                        for (int j_1 = 0; j_1 < 2; ++j_1) {
                            #pragma unroll
                            for (int j_3 = 0; j_3 < 4; ++j_3) {
                                C_acc[i_1][i_3][j_1][j_3] += A_register[i_1][i_3] * B_register[j_1][j_3];
                            }
                        }
                    }
                }
            }
        }
        if (k_0_now + 1 < 512) {
            const int k_0 = k_0_now + 1;
            // store it in A_shared
            #pragma unroll
            for (int round = 0; round < 1; ++round) {
                const int element = (round * 256 + thread) * 4;
                const int i = element / 8;
                const int k = element % 8;
                A_shared[k_0 % 2][k][i] = A_shared_next[round * 4 + 0];
                A_shared[k_0 % 2][k + 1][i] = A_shared_next[round * 4 + 1];
                A_shared[k_0 % 2][k + 2][i] = A_shared_next[round * 4 + 2];
                A_shared[k_0 % 2][k + 3][i] = A_shared_next[round * 4 + 3];
            }
            // store it in B_shared
            #pragma unroll
            for (int round = 0; round < 1; ++round) {
                const int element = (round * 256 + thread) * 4;
                const int k = element / 128;
                const int j = element % 128;
                *reinterpret_cast<float4*>(&B_shared[k_0 % 2][k][j]) = *reinterpret_cast<const float4*>(&B_shared_next[round * 4]);
            }
        }
        __syncthreads();
    }
    // write C_acc -> C
    #pragma unroll
    for (int i_1 = 0; i_1 < 2; ++i_1) {
        #pragma unroll
        for (int i_3 = 0; i_3 < 4; ++i_3) {
            #pragma unroll
            for (int j_1 = 0; j_1 < 2; ++j_1) {
                *reinterpret_cast<float4*>(&C[(i_0 * 128 + i_2 * 4 + i_1 * 64 + i_3) * 4096 + j_0 * 128 + j_2 * 4 + j_1 * 64]) = *reinterpret_cast<const float4*>(&C_acc[i_1][i_3][j_1][0]);
            }
        }
    }
}
