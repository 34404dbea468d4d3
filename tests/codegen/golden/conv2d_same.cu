// conv2d(X[2, 5, 9, 9] float32, W[6, 5, 4, 4] float32)
//   Y[n, o, p, q] = sum[c < 5, r < 4, s < 4] X[n, c, p * 2 + r - 1, q * 2 + s - 1] * W[o, c, r, s]
// 
// Written by ekc VERSION from the schedule
//   ekc.Schedule(op)
//       .split("o", (2, 2))
//       .split("p", (3,))
//       .split("q", (3, 2))
//       .split("c", (3,))
//       .reorder("n", "o.0", "p.0", "q.0", "o.1", "q.1", "c.0", "c.1", "r", "s", "o.2", "p.1", "q.2")
//       .bind("n", "block.x")
//       .bind("o.0", "block.x")
//       .bind("p.0", "block.x")
//       .bind("q.0", "block.x")
//       .bind("o.1", "thread.x")
//       .bind("q.1", "thread.x")
//       .cache_write("Y")
//       .cache_read("X", "shared", at="c.0", pad=1)
//       .cache_read("W", "shared", at="c.0")
//       .cache_read("X.shared", "register", at="r")
// digest a8ae52dfd1d10041
// grid 8 x 1 x 1, block 6 x 1 x 1
extern "C" __global__ void __launch_bounds__(6)
ekc_conv2d(const float* __restrict__ X, const float* __restrict__ W, float* __restrict__ Y)
{
    __shared__ __align__(16) float X_shared[3][8][15];
    __shared__ __align__(16) float W_shared[4][3][4][4];
    alignas(16) float Y_acc[2][3][2];
    const int n = blockIdx.x / 4;
    const int o_0 = blockIdx.x / 2 % 2;
    const int p_0 = blockIdx.x % 2;
    const int q_0 = blockIdx.x % 1;
    const int o_1 = threadIdx.x / 3;
    const int q_1 = threadIdx.x % 3;
    const int thread = threadIdx.x;
    #pragma unroll
    for (int o_2 = 0; o_2 < 2; ++o_2) {
        #pragma unroll
        for (int p_1 = 0; p_1 < 3; ++p_1) {
            #pragma unroll
            for (int q_2 = 0; q_2 < 2; ++q_2) {
                Y_acc[o_2][p_1][q_2] = 0.0f;
            }
        }
    }
    #pragma unroll 1
    for (int c_0 = 0; c_0 < 2; ++c_0) {
        // stage X[n, c_0 * 3 : 3, p_0 * 6 - 1 : 8, q_0 * 12 - 1 : 14] -> X_shared
        #pragma unroll 4
        for (int round = 0; round < 56; ++round) {
            const int element = round * 6 + thread;
            const int c = element / 112;
            const int d1 = element / 14 % 8;
            const int d2 = element % 14;
            X_shared[c][d1][d2] = (c_0 * 3 + c < 5 && p_0 * 6 + d1 - 1 >= 0 && p_0 * 6 + d1 - 1 < 9 && q_0 * 12 + d2 - 1 >= 0 && q_0 * 12 + d2 - 1 < 9) ? X[n * 405 + (c_0 * 3 + c) * 81 + (p_0 * 6 + d1 - 1) * 9 + q_0 * 12 + d2 - 1] : 0.0f;
        }
        // stage W[o_0 * 4 : 4, c_0 * 3 : 3, 0 : 4, 0 : 4] -> W_shared
        #pragma unroll 4
        for (int round = 0; round < 32; ++round) {
            const int element = round * 6 + thread;
            const int o = element / 48;
            const int c = element / 16 % 3;
            const int d2 = element / 4 % 4;
            const int d3 = element % 4;
            W_shared[o][c][d2][d3] = (o_0 * 4 + o < 6 && c_0 * 3 + c < 5) ? W[(o_0 * 4 + o) * 80 + (c_0 * 3 + c) * 16 + d2 * 4 + d3] : 0.0f;
        }
        __syncthreads();
        #pragma unroll 1
        for (int c_1 = 0; c_1 < 3; ++c_1) {
            #pragma unroll 1
            for (int r = 0; r < 4; ++r) {
                alignas(16) float X_register[3][6];
                #pragma unroll
                for (int p_1 = 0; p_1 < 3; ++p_1) {
                    #pragma unroll
                    for (int d1 = 0; d1 < 6; ++d1) {
                        X_register[p_1][d1] = X_shared[c_1][r + p_1 * 2][q_1 * 4 + d1];
                    }
                }
                #pragma unroll
                for (int s = 0; s < 4; ++s) {
                    #pragma unroll
                    for (int o_2 = 0; o_2 < 2; ++o_2) {
                        #pragma unroll
                        for (int p_1 = 0; p_1 < 3; ++p_1) {
                            #pragma unroll
                            for (int q_2 = 0; q_2 < 2; ++q_2) {
                                Y_acc[o_2][p_1][q_2] += X_register[p_1][q_2 * 2 + s] * W_shared[o_1 * 2 + o_2][c_1][r][s];
                            }
                        }
                    }
                }
            }
        }
        __syncthreads();
    }
    // write Y_acc -> Y
    #pragma unroll
    for (int o_2 = 0; o_2 < 2; ++o_2) {
        #pragma unroll
        for (int p_1 = 0; p_1 < 3; ++p_1) {
            #pragma unroll
            for (int q_2 = 0; q_2 < 2; ++q_2) {
                if (o_0 * 4 + o_1 * 2 + o_2 < 6 && p_0 * 3 + p_1 < 5 && q_0 * 6 + q_1 * 2 + q_2 < 5) {
                    Y[n * 150 + (o_0 * 4 + o_1 * 2 + o_2) * 25 + (p_0 * 3 + p_1) * 5 + q_0 * 6 + q_1 * 2 + q_2] = Y_acc[o_2][p_1][q_2];
                }
            }
        }
    }
}
