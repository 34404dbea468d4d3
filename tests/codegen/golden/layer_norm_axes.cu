// layer_norm(X[2, 6, 5, 9] float32, gamma[6, 5] float32, beta[6, 5] float32)
//   mean[i0, i3] = sum[i1 < 6, i2 < 5] X[i0, i1, i2, i3] * 0.03333333333333333
//   variance[j0, j3] = sum[j1 < 6, j2 < 5] (X[j0, j1, j2, j3] - mean[j0, j3]) * (X[j0, j1, j2, j3] - mean[j0,
//       j3]) * 0.03333333333333333
//   Y[p0, p1, p2, p3] = (X[p0, p1, p2, p3] - mean[p0, p3]) * rsqrt(variance[p0, p3] + 1e-05) * gamma[p1, p2] +
//       beta[p1, p2]
// 
// Written by ekc VERSION from the schedule
//   ekc.Schedule(op)
//       .split("i0", (16,))
//       .split("i3", (16,))
//       .reorder("i0.0", "i3.0", "i0.1", "i3.1", "i1", "i2")
//       .bind("i0.0", "block.x")
//       .bind("i3.0", "block.x")
//       .bind("i0.1", "thread.x")
//       .bind("i3.1", "thread.y")
//       .cache_write("mean")
//       .split("j0", (16,))
//       .split("j3", (16,))
//       .reorder("j0.0", "j3.0", "j0.1", "j3.1", "j1", "j2")
//       .bind("j0.0", "block.x")
//       .bind("j3.0", "block.x")
//       .bind("j0.1", "thread.x")
//       .bind("j3.1", "thread.y")
//       .cache_write("variance")
//       .split("p2", (16,))
//       .split("p3", (16,))
//       .reorder("p0", "p1", "p2.0", "p3.0", "p2.1", "p3.1")
//       .bind("p0", "block.x")
//       .bind("p1", "block.x")
//       .bind("p2.0", "block.x")
//       .bind("p3.0", "block.x")
//       .bind("p2.1", "thread.x")
//       .bind("p3.1", "thread.y")
// digest aee1cc56f91d64cb
// grid 1 x 1 x 1, block 16 x 16 x 1
extern "C" __global__ void __launch_bounds__(256)
ekc_layer_norm_0(const float* __restrict__ X, float* __restrict__ ekc_mean)
{
    alignas(16) float ekc_mean_acc[1];
    const int i0_0 = blockIdx.x;
    const int i3_0 = blockIdx.x % 1;
    const int i3_1 = threadIdx.y;
    const int i0_1 = threadIdx.x;
    ekc_mean_acc[0] = 0.0f;
    #pragma unroll 1
    for (int i1 = 0; i1 < 6; ++i1) {
        #pragma unroll 1
        for (int i2 = 0; i2 < 5; ++i2) {
            ekc_mean_acc[0] += (i0_0 * 16 + i0_1 < 2 && i3_0 * 16 + i3_1 < 9 ? X[(i0_0 * 16 + i0_1) * 270 + i1 * 45 + i2 * 9 + i3_0 * 16 + i3_1] : 0.0f) * 0.03333333507180214f;
        }
    }
    // write ekc_mean_acc -> ekc_mean
    if (i0_0 * 16 + i0_1 < 2 && i3_0 * 16 + i3_1 < 9) {
        ekc_mean[(i0_0 * 16 + i0_1) * 9 + i3_0 * 16 + i3_1] = ekc_mean_acc[0];
    }
}
// grid 1 x 1 x 1, block 16 x 16 x 1
extern "C" __global__ void __launch_bounds__(256)
ekc_layer_norm_1(const float* __restrict__ X, const float* __restrict__ ekc_mean, float* __restrict__ ekc_variance)
{
    alignas(16) float ekc_variance_acc[1];
    const int j0_0 = blockIdx.x;
    const int j3_0 = blockIdx.x % 1;
    const int j3_1 = threadIdx.y;
    const int j0_1 = threadIdx.x;
    ekc_variance_acc[0] = 0.0f;
    #pragma unroll 1
    for (int j1 = 0; j1 < 6; ++j1) {
        #pragma unroll 1
        for (int j2 = 0; j2 < 5; ++j2) {
            ekc_variance_acc[0] += ((j0_0 * 16 + j0_1 < 2 && j3_0 * 16 + j3_1 < 9 ? X[(j0_0 * 16 + j0_1) * 270 + j1 * 45 + j2 * 9 + j3_0 * 16 + j3_1] : 0.0f) - (j0_0 * 16 + j0_1 < 2 && j3_0 * 16 + j3_1 < 9 ? ekc_mean[(j0_0 * 16 + j0_1) * 9 + j3_0 * 16 + j3_1] : 0.0f)) * ((j0_0 * 16 + j0_1 < 2 && j3_0 * 16 + j3_1 < 9 ? X[(j0_0 * 16 + j0_1) * 270 + j1 * 45 + j2 * 9 + j3_0 * 16 + j3_1] : 0.0f) - (j0_0 * 16 + j0_1 < 2 && j3_0 * 16 + j3_1 < 9 ? ekc_mean[(j0_0 * 16 + j0_1) * 9 + j3_0 * 16 + j3_1] : 0.0f)) * 0.03333333507180214f;
        }
    }
    // write ekc_variance_acc -> ekc_variance
    if (j0_0 * 16 + j0_1 < 2 && j3_0 * 16 + j3_1 < 9) {
        ekc_variance[(j0_0 * 16 + j0_1) * 9 + j3_0 * 16 + j3_1] = ekc_variance_acc[0];
    }
}
// grid 12 x 1 x 1, block 16 x 16 x 1
extern "C" __global__ void __launch_bounds__(256)
ekc_layer_norm_2(const float* __restrict__ X, const float* __restrict__ ekc_mean, const float* __restrict__ ekc_variance, const float* __restrict__ ekc_gamma, const float* __restrict__ ekc_beta, float* __restrict__ Y)
{
    const int p0 = blockIdx.x / 6;
    const int p1 = blockIdx.x % 6;
    const int p2_0 = blockIdx.x % 1;
    const int p3_0 = blockIdx.x % 1;
    const int p3_1 = threadIdx.y;
    const int p2_1 = threadIdx.x;
    if (p2_0 * 16 + p2_1 < 5 && p3_0 * 16 + p3_1 < 9) Y[p0 * 270 + p1 * 45 + (p2_0 * 16 + p2_1) * 9 + p3_0 * 16 + p3_1] = ((p2_0 * 16 + p2_1 < 5 && p3_0 * 16 + p3_1 < 9 ? X[p0 * 270 + p1 * 45 + (p2_0 * 16 + p2_1) * 9 + p3_0 * 16 + p3_1] : 0.0f) - (p3_0 * 16 + p3_1 < 9 ? ekc_mean[p0 * 9 + p3_0 * 16 + p3_1] : 0.0f)) * rsqrtf((p3_0 * 16 + p3_1 < 9 ? ekc_variance[p0 * 9 + p3_0 * 16 + p3_1] : 0.0f) + 9.999999747378752e-06f) * (p2_0 * 16 + p2_1 < 5 ? ekc_gamma[p1 * 5 + p2_0 * 16 + p2_1] : 0.0f) + (p2_0 * 16 + p2_1 < 5 ? ekc_beta[p1 * 5 + p2_0 * 16 + p2_1] : 0.0f);
}
