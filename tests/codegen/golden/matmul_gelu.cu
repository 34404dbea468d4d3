// matmul_epilogue(A[250, 64] float32, B[64, 128] float32, bias[128] float32, before[250, 128] float32)
//   C[i, j] = sum[k < 64] A[i, k] * B[k, j]
//   C_out[i_out, j_out] = 0.5 * (C[i_out, j_out] + bias[j_out]) * (1 + erf((C[i_out, j_out] + bias[j_out]) *
//       0.7071067811865476))
//   C_out2[i_out2, j_out2] = C_out[i_out2, j_out2] + before[i_out2, j_out2]
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
//       .compute_inline("C")
//       .compute_inline("C_out")
// digest c2fb9bcb03ea1ffb
// grid 1 x 2 x 1, block 16 x 16 x 1
extern "C" __global__ void __launch_bounds__(256)
ekc_matmul_epilogue(const float* __restrict__ A, const float* __restrict__ B, const float* __restrict__ ekc_bias, const float* __restrict__ ekc_before, float* __restrict__ ekc_C_out2)
{
    __shared__ __align__(16) float A_shared[8][132];
    __shared__ __align__(16) float B_shared[8][128];
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
    #pragma unroll 1
    for (int k_0 = 0; k_0 < 8; ++k_0) {
        // stage A[i_0 * 128 : 128, k_0 * 8 : 8] -> A_shared
        #pragma unroll
        for (int round = 0; round < 1; ++round) {
            const int element = (round * 256 + thread) * 4;
            const int i = element / 8;
            const int k = element % 8;
            {
                alignas(16) float packed[4] = {};
                if (i_0 * 128 + i < 250) *reinterpret_cast<float4*>(&packed[0]) = *reinterpret_cast<const float4*>(&A[(i_0 * 128 + i) * 64 + k_0 * 8 + k]);
                A_shared[k][i] = packed[0];
                A_shared[k + 1][i] = packed[1];
                A_shared[k + 2][i] = packed[2];
                A_shared[k + 3][i] = packed[3];
            }
        }
        // stage B[k_0 * 8 : 8, j_0 * 128 : 128] -> B_shared
        #pragma unroll
        for (int round = 0; round < 1; ++round) {
            const int element = (round * 256 + thread) * 4;
            const int k = element / 128;
            const int j = element % 128;
            *reinterpret_cast<float4*>(&B_shared[k][j]) = *reinterpret_cast<const float4*>(&B[(k_0 * 8 + k) * 128 + j_0 * 128 + j]);
        }
        __syncthreads();
        #pragma unroll
        for (int k_1 = 0; k_1 < 8; ++k_1) {
            alignas(16) float A_register[2][4];
            #pragma unroll
            for (int i_1 = 0; i_1 < 2; ++i_1) {
                *reinterpret_cast<float4*>(&A_register[i_1][0]) = *reinterpret_cast<const float4*>(&A_shared[k_1][i_2 * 4 + i_1 * 64]);
            }
            alignas(16) float B_register[2][4];
            #pragma unroll
            for (int j_1 = 0; j_1 < 2; ++j_1) {
                *reinterpret_cast<float4*>(&B_register[j_1][0]) = *reinterpret_cast<const float4*>(&B_shared[k_1][j_2 * 4 + j_1 * 64]);
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
        __syncthreads();
    }
    // write C_acc -> ekc_C_out2
    #pragma unroll
    for (int i_1 = 0; i_1 < 2; ++i_1) {
        #pragma unroll
        for (int i_3 = 0; i_3 < 4; ++i_3) {
            #pragma unroll
            for (int j_1 = 0; j_1 < 2; ++j_1) {
                if (i_0 * 128 + i_2 * 4 + i_1 * 64 + i_3 < 250) {
                    {
                        alignas(16) float packed[4];
                        alignas(16) float ekc_bias_vector[4];
                        *reinterpret_cast<float4*>(&ekc_bias_vector[0]) = *reinterpret_cast<const float4*>(&ekc_bias[j_0 * 128 + j_2 * 4 + j_1 * 64]);
                        alignas(16) float ekc_before_vector[4];
                        *reinterpret_cast<float4*>(&ekc_before_vector[0]) = *reinterpret_cast<const float4*>(&ekc_before[(i_0 * 128 + i_2 * 4 + i_1 * 64 + i_3) * 128 + j_0 * 128 + j_2 * 4 + j_1 * 64]);
                        #pragma unroll
                        for (int part = 0; part < 4; ++part) {
                            const float C_value = C_acc[i_1][i_3][j_1][part];
                            const float ekc_bias_value = ekc_bias_vector[part];
                            const float ekc_before_value = ekc_before_vector[part];
                            packed[part] = 0.5f * (C_value + ekc_bias_value) * (1.0f + erff((C_value + ekc_bias_value) * 0.7071067690849304f)) + ekc_before_value;
                        }
                        *reinterpret_cast<float4*>(&ekc_C_out2[(i_0 * 128 + i_2 * 4 + i_1 * 64 + i_3) * 128 + j_0 * 128 + j_2 * 4 + j_1 * 64]) = *reinterpret_cast<const float4*>(&packed[0]);
                    }
                }
            }
        }
    }
}
