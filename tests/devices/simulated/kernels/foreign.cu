// Kernels as people write them: sizes are arguments, loops begin at the number of the thread.

extern "C" __global__ void sum_by_grid_stride(const float* x, float* y, int n) {
  float sum = 0.0f;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x) sum += x[i];
  if (threadIdx.x < 32) y[blockIdx.x * 32 + threadIdx.x] = sum;
}

extern "C" __global__ void normalize_rows(const float* x, float* y, int columns) {
  __shared__ float total[256];
  const float* row = x + blockIdx.x * columns;
  float sum = 0.0f;
  for (int i = threadIdx.x; i < columns; i += 256) sum += row[i];
  total[threadIdx.x] = sum;
  __syncthreads();
  for (int step = 128; step; step >>= 1) {
    if (threadIdx.x < step) total[threadIdx.x] += total[threadIdx.x + step];
    __syncthreads();
  }
  for (int i = threadIdx.x; i < columns; i += 256) y[blockIdx.x * columns + i] = row[i] / total[0];
}

// Blocks of 32 x 32: a tile of A [m, k] and one of B [k, n] each trip; the first warp alone writes `marks`.
extern "C" __global__ void multiply_tiles(const float* A, const float* B, float* C, float* marks, int n, int k) {
  __shared__ float a[32][32], b[32][33];
  int tx = threadIdx.x, ty = threadIdx.y, row = blockIdx.y * 32 + ty, column = blockIdx.x * 32 + tx;
  float sum = 0.0f;
  for (int t = 0; t < k; t += 32) {
    a[ty][tx] = A[row * k + t + tx];
    b[ty][tx] = B[(t + ty) * n + column];
    __syncthreads();
    for (int q = 0; q < 32; ++q) sum += a[ty][q] * b[q][tx];
    __syncthreads();
  }
  C[row * n + column] = sum;
  if (ty == 0) {
    float mark = sum;
    for (int q = 0; q < 64; ++q) mark = mark * 0.5f + sum;
    marks[(blockIdx.y * gridDim.x + blockIdx.x) * 32 + tx] = mark;
  }
}

extern "C" __global__ void multiply_sparse_rows(const int* begin, const int* column, const float* value,
                                                const float* x, float* y) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  float sum = 0.0f;
  for (int i = begin[row]; i < begin[row + 1]; ++i) sum += value[i] * x[column[i]];
  y[row] = sum;
}

// The bounds of a row's sum pass through shared memory, summed up there.
extern "C" __global__ void sum_by_lengths(const int* length, const float* value, float* y) {
  __shared__ int begin[65];
  int t = threadIdx.x;
  if (t == 0) {
    begin[0] = 0;
    for (int i = 0; i < 64; ++i) begin[i + 1] = begin[i] + length[i];
  }
  __syncthreads();
  float sum = 0.0f;
  for (int i = begin[t]; i < begin[t + 1]; ++i) sum += value[i];
  y[t] = sum;
}

extern "C" __global__ void add_to_bins(const float* x, float* bins, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) atomicAdd(&bins[i % 1024], sqrtf(x[i]) * 2.0f);
}

// Each block reads `width` neighbours of every row: 8 fill a sector of 32 bytes.
extern "C" __global__ void read_columns(const float* x, float* y, int columns, int rows, int width) {
  float sum = 0.0f;
  for (int i = threadIdx.x; i < rows * width; i += blockDim.x)
    sum += x[i / width * columns + blockIdx.x * width + i % width];
  y[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}
