// matvec(A[4096, 4096] int8, x[4096] int8)
//   y[i] = sum[k < 4096] A[i, k] * x[k]
// 
// Written by ekc VERSION from the schedule
//   ekc.Schedule(op)
//       .split("i", (8,))
//       .split("k", (32, 4))
//       .reorder("i.0", "i.1", "k.1", "k.0", "k.2")
//       .bind("i.0", "block.x")
//       .bind("i.1", "thread.y")
//       .bind("k.1", "thread.x")
//       .cache_write("y")
//       .cache_read("A", "register", at="k.0", vector=4)
// digest 2d821bb795549475
// grid 512 x 1 x 1, block 32 x 8 x 1
extern "C" __global__ void __launch_bounds__(256)
ekc_matvec(const signed char* __restrict__ A, const signed char* __restrict__ x, int* __restrict__ y)
{
    alignas(16) int y_acc[1];
    const int i_0 = blockIdx.x;
    const int i_1 = threadIdx.y;
    const int k_1 = threadIdx.x;
    y_acc[0] = 0;
    #pragma unroll 1
    for (int k_0 = 0; k_0 < 32; ++k_0) {
        alignas(16) int A_register[4];
        {
            alignas(4) signed char packed[4] = {};
            *reinterpret_cast<unsigned int*>(&packed[0]) = *reinterpret_cast<const unsigned int*>(&A[(i_0 * 8 + i_1) * 4096 + k_0 * 128 + k_1 * 4]);
            A_register[0] = static_cast<int>(packed[0]);
            A_register[1] = static_cast<int>(packed[1]);
            A_register[2] = static_cast<int>(packed[2]);
            A_register[3] = static_cast<int>(packed[3]);
        }
        #pragma unroll
        for (int k_2 = 0; k_2 < 4; ++k_2) {
            y_acc[0] += A_register[k_2] * static_cast<int>(x[k_0 * 128 + k_1 * 4 + k_2]);
        }
    }
    // sum over 32 lanes
    #pragma unroll
    for (int lane = 16; lane > 0; lane /= 2) {
        y_acc[0] += __shfl_xor_sync(0xffffffffu, y_acc[0], lane);
    }
    // write y_acc -> y
    if (k_1 == 0) {
        y[i_0 * 8 + i_1] = y_acc[0];
    }
}
