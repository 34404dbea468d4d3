// matmul(A[100, 4096] float32, B[4096, 60] float32)
//   C[i, j] = sum[k < 4096] A[i, k] * B[k, j]
// 
// Written by ekc VERSION from the schedule
//   ekc.Schedule(op)
//       .atomic("C")
//       .cache_write("C")
//       .split("i", (8, 2))
//       .split("j", (16, 2))
//       .split("k", (32, 8))
//       .reorder("k.0", "i.0", "j.0", "i.1", "j.1", "k.1", "k.2", "i.2", "j.2")
//       .bind("k.0", "block.z")
//       .bind("i.0", "block.y")
//       .bind("j.0", "block.x")
//       .bind("i.1", "thread.y")
//       .bind("j.1", "thread.x")
//       .cache_read("A", "shared", at="k.1", vector=4)
//       .cache_read("B", "shared", at="k.1")
// digest 9e1d5fde1209bb97
// grid 6 x 1 x 1, block 256 x 1 x 1
extern "C" __global__ void __launch_bounds__(256)
ekc_matmul_0(float* __restrict__ C)
{
    alignas(16) float C_acc[4];
    const int ekc_at_0 = blockIdx.x;
    const int ekc_at_1 = threadIdx.x;
    #pragma unroll
    for (int ekc_at_2 = 0; ekc_at_2 < 4; ++ekc_at_2) {
        C_acc[ekc_at_2] = 0.0f;
    }
    // write C_acc -> C
    if (ekc_at_0 * 1024 + ekc_at_1 * 4 < 6000) {
        *reinterpret_cast<float4*>(&C[ekc_at_0 * 1024 + ekc_at_1 * 4]) = *reinterpret_cast<const float4*>(&C_acc[0]);
    }
}
// grid 2 x 7 x 16, block 16 x 8 x 1
extern "C" __global__ void __launch_bounds__(128)
ekc_matmul_1(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C)
{
    __shared__ __align__(16) float A_shared[16][8];
    __shared__ __align__(16) float B_shared[8][32];
    alignas(16) float C_acc[2][2];
    const int k_0 = blockIdx.z;
    const int i_0 = blockIdx.y;
    const int j_0 = blockIdx.x;
    const int i_1 = threadIdx.y;
    const int j_1 = threadIdx.x;
    const int thread = threadIdx.y * 16 + threadIdx.x;
    #pragma unroll
    for (int i_2 = 0; i_2 < 2; ++i_2) {
        #pragma unroll
        for (int j_2 = 0; j_2 < 2; ++j_2) {
            C_acc[i_2][j_2] = 0.0f;
        }
    }
    #pragma unroll 1
    for (int k_1 = 0; k_1 < 32; ++k_1) {
        // stage A[i_0 * 16 : 16, k_0 * 256 + k_1 * 8 : 8] -> A_shared
        #pragma unroll
        for (int round = 0; round < 1; ++round) {
            const int element = (round * 128 + thread) * 4;
            if (element < 128) {
                const int i = element / 8;
                const int k = element % 8;
                {
                    alignas(16) float packed[4] = {};
                    if (i_0 * 16 + i < 100) *reinterpret_cast<float4*>(&packed[0]) = *reinterpret_cast<const float4*>(&A[(i_0 * 16 + i) * 4096 + k_0 * 256 + k_1 * 8 + k]);
                    *reinterpret_cast<float4*>(&A_shared[i][k]) = *reinterpret_cast<const float4*>(&packed[0]);
                }
            }
        }
        // stage B[k_0 * 256 + k_1 * 8 : 8, j_0 * 32 : 32] -> B_shared
        #pragma unroll
        for (int round = 0; round < 2; ++round) {
            const int element = round * 128 + thread;
            const int k = element / 32;
            const int j = element % 32;
            B_shared[k][j] = (j_0 * 32 + j < 60) ? B[(k_0 * 256 + k_1 * 8 + k) * 60 + j_0 * 32 + j] : 0.0f;
        }
        __syncthreads();
        #pragma unroll 1
        for (int k_2 = 0; k_2 < 8; ++k_2) {
            #pragma unroll
            for (int i_2 = 0; i_2 < 2; ++i_2) {
                #pragma unroll
                for (int j_2 = 0; j_2 < 2; ++j_2) {
                    C_acc[i_2][j_2] += A_shared[i_1 * 2 + i_2][k_2] * B_shared[k_2][j_1 * 2 + j_2];
                }
            }
        }
        __syncthreads();
    }
    // add C_acc -> C
    #pragma unroll
    for (int i_2 = 0; i_2 < 2; ++i_2) {
        #pragma unroll
        for (int j_2 = 0; j_2 < 2; ++j_2) {
            if (i_0 * 16 + i_1 * 2 + i_2 < 100 && j_0 * 32 + j_1 * 2 + j_2 < 60) {
                atomicAdd(&C[(i_0 * 16 + i_1 * 2 + i_2) * 60 + j_0 * 32 + j_1 * 2 + j_2], C_acc[i_2][j_2]);
            }
        }
    }
}
