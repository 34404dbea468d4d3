// batch_matmul(A[3, 48, 60] float32, B[3, 64, 48] float32)
//   C[b, i, j] = sum[k < 48] A[b, k, i] * B[b, j, k]
// 
// Written by ekc VERSION from the schedule
//   ekc.Schedule(op)
//       .split("i", (8, 2))
//       .split("j", (16, 2))
//       .split("k", (8,))
//       .reorder("b", "i.0", "j.0", "i.1", "j.1", "k.0", "k.1", "i.2", "j.2")
//       .bind("b", "block.z")
//       .bind("i.0", "block.y")
//       .bind("j.0", "block.x")
//       .bind("i.1", "thread.y")
//       .bind("j.1", "thread.x")
//       .cache_write("C", vector=2)
//       .cache_read("A", "shared", at="k.0", vector=2)
//       .cache_read("B", "shared", at="k.0", vector=4)
// digest 3dd71b3d9685c178
// grid 2 x 4 x 3, block 16 x 8 x 1
extern "C" __global__ void __launch_bounds__(128)
ekc_batch_matmul(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C)
{
    __shared__ __align__(16) float A_shared[8][16];
    __shared__ __align__(16) float B_shared[32][8];
    alignas(16) float C_acc[2][2];
    const int b = blockIdx.z;
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
    for (int k_0 = 0; k_0 < 6; ++k_0) {
        // stage A[b, k_0 * 8 : 8, i_0 * 16 : 16] -> A_shared
        #pragma unroll
        for (int round = 0; round < 1; ++round) {
            const int element = (round * 128 + thread) * 2;
            if (element < 128) {
                const int k = element / 16;
                const int i = element % 16;
                {
                    alignas(8) float packed[2] = {};
                    if (i_0 * 16 + i < 60) *reinterpret_cast<float2*>(&packed[0]) = *reinterpret_cast<const float2*>(&A[b * 2880 + (k_0 * 8 + k) * 60 + i_0 * 16 + i]);
                    *reinterpret_cast<float2*>(&A_shared[k][i]) = *reinterpret_cast<const float2*>(&packed[0]);
                }
            }
        }
        // stage B[b, j_0 * 32 : 32, k_0 * 8 : 8] -> B_shared
        #pragma unroll
        for (int round = 0; round < 1; ++round) {
            const int element = (round * 128 + thread) * 4;
            if (element < 256) {
                const int j = element / 8;
                const int k = element % 8;
                *reinterpret_cast<float4*>(&B_shared[j][k]) = *reinterpret_cast<const float4*>(&B[b * 3072 + (j_0 * 32 + j) * 48 + k_0 * 8 + k]);
            }
        }
        __syncthreads();
        #pragma unroll 1
        for (int k_1 = 0; k_1 < 8; ++k_1) {
            #pragma unroll
            for (int i_2 = 0; i_2 < 2; ++i_2) {
                #pragma unroll
                for (int j_2 = 0; j_2 < 2; ++j_2) {
                    C_acc[i_2][j_2] += A_shared[k_1][i_1 * 2 + i_2] * B_shared[j_1 * 2 + j_2][k_1];
                }
            }
        }
        __syncthreads();
    }
    // write C_acc -> C
    #pragma unroll
    for (int i_2 = 0; i_2 < 2; ++i_2) {
        if (i_0 * 16 + i_1 * 2 + i_2 < 60) {
            *reinterpret_cast<float2*>(&C[b * 3840 + (i_0 * 16 + i_1 * 2 + i_2) * 64 + j_0 * 32 + j_1 * 2]) = *reinterpret_cast<const float2*>(&C_acc[i_2][0]);
        }
    }
}
