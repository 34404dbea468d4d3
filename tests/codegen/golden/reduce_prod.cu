// reduce_prod(X[5, 100] float32)
//   Y[i0] = prod[k1 < 100] X[i0, k1]
// 
// Written by ekc VERSION from the schedule
//   ekc.Schedule(op)
//       .rfactor("k1", 2)
//       .split("i0", (4,))
//       .split("k1", (8, 4))
//       .reorder("k1_part", "i0.0", "i0.1", "k1.1", "k1.0", "k1.2")
//       .bind("k1_part", "block.y")
//       .bind("i0.0", "block.x")
//       .bind("i0.1", "thread.y")
//       .bind("k1.1", "thread.x")
//       .cache_write("Y_parts")
//       .cache_write("Y")
//       .cache_read("X", "register", at="k1.0", vector=2)
// digest ce0dd8cb83e6a619
// grid 2 x 2 x 1, block 8 x 4 x 1
extern "C" __global__ void __launch_bounds__(32)
ekc_reduce_prod_0(const float* __restrict__ X, float* __restrict__ ekc_Y_parts)
{
    alignas(16) float ekc_Y_parts_acc[1];
    const int ekc_k1_part = blockIdx.y;
    const int i0_0 = blockIdx.x;
    const int i0_1 = threadIdx.y;
    const int k1_1 = threadIdx.x;
    ekc_Y_parts_acc[0] = 1.0f;
    #pragma unroll 1
    for (int k1_0 = 0; k1_0 < 2; ++k1_0) {
        alignas(16) float X_register[4];
        #pragma unroll
        for (int k1_2 = 0; k1_2 < 4; k1_2 += 2) {
            {
                alignas(8) float packed[2] = {};
                if (i0_0 * 4 + i0_1 < 5 && ekc_k1_part * 50 + k1_0 * 32 + k1_1 * 4 + k1_2 < 100) *reinterpret_cast<float2*>(&packed[0]) = *reinterpret_cast<const float2*>(&X[(i0_0 * 4 + i0_1) * 100 + ekc_k1_part * 50 + k1_0 * 32 + k1_1 * 4 + k1_2]);
                *reinterpret_cast<float2*>(&X_register[k1_2]) = *reinterpret_cast<const float2*>(&packed[0]);
            }
        }
        #pragma unroll
        for (int k1_2 = 0; k1_2 < 4; ++k1_2) {
            if (k1_0 * 32 + k1_1 * 4 + k1_2 < 50) ekc_Y_parts_acc[0] *= X_register[k1_2];
        }
    }
    // prod over 8 lanes
    #pragma unroll
    for (int lane = 4; lane > 0; lane /= 2) {
        ekc_Y_parts_acc[0] *= __shfl_xor_sync(0xffffffffu, ekc_Y_parts_acc[0], lane);
    }
    // write ekc_Y_parts_acc -> ekc_Y_parts
    if (k1_1 == 0 && i0_0 * 4 + i0_1 < 5) {
        ekc_Y_parts[ekc_k1_part * 5 + i0_0 * 4 + i0_1] = ekc_Y_parts_acc[0];
    }
}
// grid 1 x 1 x 1, block 1 x 1 x 1
extern "C" __global__ void __launch_bounds__(1)
ekc_reduce_prod_1(const float* __restrict__ ekc_Y_parts, float* __restrict__ Y)
{
    alignas(16) float Y_acc[1];
    #pragma unroll 1
    for (int ekc_i0_ = 0; ekc_i0_ < 5; ++ekc_i0_) {
        Y_acc[0] = 1.0f;
        #pragma unroll 1
        for (int ekc_k1_part_ = 0; ekc_k1_part_ < 2; ++ekc_k1_part_) {
            Y_acc[0] *= ekc_Y_parts[ekc_k1_part_ * 5 + ekc_i0_];
        }
        // write Y_acc -> Y
        Y[ekc_i0_] = Y_acc[0];
    }
}
