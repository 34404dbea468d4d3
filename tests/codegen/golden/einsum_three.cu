// einsum(A[2, 1, 40, 12] float32, B[3, 12, 33] float32, D[33, 6] float32)
//   BD[batch11, j1, l1] = sum[k1 < 33] B[batch11, j1, k1] * D[k1, l1]
//   C[batch0, batch1, i, l] = sum[j < 12] A[batch0, 0, i, j] * BD[batch1, j, l]
// 
// Written by ekc VERSION from the schedule
//   ekc.Schedule(op)
//       .split("j1", (16,))
//       .split("l1", (16,))
//       .reorder("batch11", "j1.0", "l1.0", "j1.1", "l1.1", "k1")
//       .bind("batch11", "block.x")
//       .bind("j1.0", "block.x")
//       .bind("l1.0", "block.x")
//       .bind("j1.1", "thread.x")
//       .bind("l1.1", "thread.y")
//       .cache_write("BD")
//       .split("i", (16,))
//       .split("l", (16,))
//       .reorder("batch0", "batch1", "i.0", "l.0", "i.1", "l.1", "j")
//       .bind("batch0", "block.x")
//       .bind("batch1", "block.x")
//       .bind("i.0", "block.x")
//       .bind("l.0", "block.x")
//       .bind("i.1", "thread.x")
//       .bind("l.1", "thread.y")
//       .cache_write("C")
// digest a74942639a5e6564
// grid 3 x 1 x 1, block 16 x 16 x 1
extern "C" __global__ void __launch_bounds__(256)
ekc_einsum_0(const float* __restrict__ B, const float* __restrict__ D, float* __restrict__ ekc_BD)
{
    alignas(16) float ekc_BD_acc[1];
    const int ekc_batch11 = blockIdx.x;
    const int j1_0 = blockIdx.x % 1;
    const int l1_0 = blockIdx.x % 1;
    const int l1_1 = threadIdx.y;
    const int j1_1 = threadIdx.x;
    ekc_BD_acc[0] = 0.0f;
    #pragma unroll 1
    for (int k1 = 0; k1 < 33; ++k1) {
        ekc_BD_acc[0] += (j1_0 * 16 + j1_1 < 12 ? B[ekc_batch11 * 396 + (j1_0 * 16 + j1_1) * 33 + k1] : 0.0f) * (l1_0 * 16 + l1_1 < 6 ? D[k1 * 6 + l1_0 * 16 + l1_1] : 0.0f);
    }
    // write ekc_BD_acc -> ekc_BD
    if (j1_0 * 16 + j1_1 < 12 && l1_0 * 16 + l1_1 < 6) {
        ekc_BD[ekc_batch11 * 72 + (j1_0 * 16 + j1_1) * 6 + l1_0 * 16 + l1_1] = ekc_BD_acc[0];
    }
}
// grid 18 x 1 x 1, block 16 x 16 x 1
extern "C" __global__ void __launch_bounds__(256)
ekc_einsum_1(const float* __restrict__ A, const float* __restrict__ ekc_BD, float* __restrict__ C)
{
    alignas(16) float C_acc[1];
    const int ekc_batch0 = blockIdx.x / 9;
    const int ekc_batch1 = blockIdx.x / 3 % 3;
    const int i_0 = blockIdx.x % 3;
    const int l_0 = blockIdx.x % 1;
    const int l_1 = threadIdx.y;
    const int i_1 = threadIdx.x;
    C_acc[0] = 0.0f;
    #pragma unroll 1
    for (int j = 0; j < 12; ++j) {
        C_acc[0] += (i_0 * 16 + i_1 < 40 ? A[ekc_batch0 * 480 + (i_0 * 16 + i_1) * 12 + j] : 0.0f) * (l_0 * 16 + l_1 < 6 ? ekc_BD[ekc_batch1 * 72 + j * 6 + l_0 * 16 + l_1] : 0.0f);
    }
    // write C_acc -> C
    if (i_0 * 16 + i_1 < 40 && l_0 * 16 + l_1 < 6) {
        C[ekc_batch0 * 720 + ekc_batch1 * 240 + (i_0 * 16 + i_1) * 6 + l_0 * 16 + l_1] = C_acc[0];
    }
}
