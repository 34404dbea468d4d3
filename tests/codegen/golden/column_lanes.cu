// einsum(A[100, 41] float32, B[100] float32)
//   C[m] = sum[k < 100] A[k, m] * B[k]
// 
// Written by ekc VERSION from the schedule
//   ekc.Schedule(op)
//       .split("m", (2, 4, 2))
//       .split("k", (8, 3))
//       .reorder("m.0", "m.1", "k.1", "m.2", "k.0", "k.2", "m.3")
//       .bind("m.0", "block.x")
//       .bind("m.1", "thread.x")
//       .bind("k.1", "thread.x")
//       .bind("m.2", "thread.x")
//       .cache_write("C")
//       .cache_read("A", "register", at="k.0")
// digest 280ec216380a8734
// grid 3 x 1 x 1, block 64 x 1 x 1
extern "C" __global__ void __launch_bounds__(64)
ekc_einsum(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C)
{
    alignas(16) float C_acc[2];
    const int m_0 = blockIdx.x;
    const int m_1 = threadIdx.x / 32;
    const int k_1 = threadIdx.x / 4 % 8;
    const int m_2 = threadIdx.x % 4;
    #pragma unroll
    for (int m_3 = 0; m_3 < 2; ++m_3) {
        C_acc[m_3] = 0.0f;
    }
    #pragma unroll 1
    for (int k_0 = 0; k_0 < 5; ++k_0) {
        alignas(16) float A_register[3][2];
        #pragma unroll
        for (int k_2 = 0; k_2 < 3; ++k_2) {
            #pragma unroll
            for (int m_3 = 0; m_3 < 2; ++m_3) {
                A_register[k_2][m_3] = (k_0 * 24 + k_1 * 3 + k_2 < 100 && m_0 * 16 + m_1 * 8 + m_2 * 2 + m_3 < 41) ? A[(k_0 * 24 + k_1 * 3 + k_2) * 41 + m_0 * 16 + m_1 * 8 + m_2 * 2 + m_3] : 0.0f;
            }
        }
        #pragma unroll
        for (int k_2 = 0; k_2 < 3; ++k_2) {
            #pragma unroll
            for (int m_3 = 0; m_3 < 2; ++m_3) {
                C_acc[m_3] += A_register[k_2][m_3] * (k_0 * 24 + k_1 * 3 + k_2 < 100 ? B[k_0 * 24 + k_1 * 3 + k_2] : 0.0f);
            }
        }
    }
    // sum over 8 lanes, every 4
    #pragma unroll
    for (int lane = 16; lane > 2; lane /= 2) {
        #pragma unroll
        for (int m_3 = 0; m_3 < 2; ++m_3) {
            C_acc[m_3] += __shfl_xor_sync(0xffffffffu, C_acc[m_3], lane);
        }
    }
    // write C_acc -> C
    #pragma unroll
    for (int m_3 = 0; m_3 < 2; ++m_3) {
        if (k_1 == 0 && m_0 * 16 + m_1 * 8 + m_2 * 2 + m_3 < 41) {
            C[m_0 * 16 + m_1 * 8 + m_2 * 2 + m_3] = C_acc[m_3];
        }
    }
}
