// vector_add<<<8, 128>>>
extern "C" __global__ void k(const float* a, const float* b, float* c, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) c[i] = a[i] + b[i]; }

// saxpy_grid_stride<<<3, 64>>>
extern "C" __global__ void k(float a, const float* x, float* y, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    y[i] = a * x[i] + y[i]; }

// transpose<<<(3, 3), (32, 8)>>>
extern "C" __global__ void k(const float* a, float* b, int n) {
  __shared__ float t[32][32 + PAD];
  int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
  for (int j = 0; j < 32; j += 8) t[threadIdx.y + j][threadIdx.x] = a[(y + j) * n + x];
  __syncthreads();
  x = blockIdx.y * 32 + threadIdx.x; y = blockIdx.x * 32 + threadIdx.y;
  for (int j = 0; j < 32; j += 8) b[(y + j) * n + x] = t[threadIdx.x][threadIdx.y + j]; }

// stencil<<<4, 128>>>
extern "C" __global__ void k(const float* a, float* b, int n) { __shared__ float s[130];
  int i = blockIdx.x * 128 + threadIdx.x, t = threadIdx.x + 1;
  s[t] = i < n ? a[i] : 0; if (t == 1) s[0] = i ? a[i - 1] : 0; if (t == 128) s[129] = i + 1 < n ? a[i + 1] : 0;
  __syncthreads(); if (i < n) b[i] = (s[t - 1] + s[t] + s[t + 1]) / 3; }

// double_buffer<<<1, 64>>>
extern "C" __global__ void k(const float* a, float* b) { __shared__ float s[2][64]; int t = threadIdx.x; float v = 0;
  s[0][t] = a[t]; __syncthreads();
  for (int i = 0; i < 8; ++i) { if (i < 7) s[1 - (i & 1)][t] = a[(i + 1) * 64 + t];
    v += s[i & 1][63 - t]; __syncthreads(); } b[t] = v; }

// dynamic_shared<<<1, 96, 768>>>
extern "C" __global__ void k(const float* a, float* b, int n) { extern __shared__ float s[]; int t = threadIdx.x;
  s[t] = a[t]; s[n + t] = 2 * a[t]; __syncthreads(); b[t] = s[n - 1 - t] + s[2 * n - 1 - t]; }

// float4_copy<<<2, 64>>>
extern "C" __global__ void k(const float4* a, float4* b, int n) { int i = blockIdx.x * 64 + threadIdx.x;
  if (i < n) { float4 v = a[i]; b[i] = make_float4(v.w, v.z, v.y, v.x); } }

// local_array<<<1, 64>>>
extern "C" __global__ void k(const int* a, int* b) { int v[16]; int t = threadIdx.x;
  for (int i = 0; i < 16; ++i) v[(a[t] + i) & 15] = i * t; b[t] = v[t & 15]; }

// constant_table<<<1, 100>>>
__constant__ float w[5] = {1, 2, 3, 2, 1};
  extern "C" __global__ void k(const float* a, float* b, int n) { int i = threadIdx.x; float s = 0;
  for (int j = 0; j < 5; ++j) if (i + j < n) s += w[j] * a[i + j]; b[i] = s; }

// matmul_naive<<<(3, 3), (16, 16)>>>
extern "C" __global__ void k(const float* a, const float* b, float* c, int n) { int x = blockIdx.x * 16 + threadIdx.x,
  y = blockIdx.y * 16 + threadIdx.y; if (x >= n || y >= n) return; float s = 0;
  for (int i = 0; i < n; ++i) s += a[y * n + i] * b[i * n + x]; c[y * n + x] = s; }

// matmul_shared<<<(3, 3), (16, 16)>>>
extern "C" __global__ void k(const float* a, const float* b, float* c, int n) { __shared__ float p[16][16], q[16][16];
  int tx = threadIdx.x, ty = threadIdx.y, x = blockIdx.x * 16 + tx, y = blockIdx.y * 16 + ty; float s = 0;
  for (int i = 0; i < n; i += 16) { p[ty][tx] = a[y * n + i + tx]; q[ty][tx] = b[(i + ty) * n + x]; __syncthreads();
    for (int j = 0; j < 16; ++j) s += p[ty][j] * q[j][tx]; __syncthreads(); } c[y * n + x] = s; }

// structure_argument<<<1, 64>>>
struct P { int n; float s; long long o; };
  extern "C" __global__ void k(P p, const float* a, float* b) { int i = threadIdx.x; if (i < p.n) b[i] = a[i] * p.s + p.o; }

// generic_pointers<<<1, 64>>>
extern "C" __global__ void k(float* a, float* b) { __shared__ float s[64]; int t = threadIdx.x; s[t] = 100 + t; __syncthreads();
  float* p = t & 1 ? s : a; b[t] = p[t]; __syncthreads(); p[t] = -1; __syncthreads(); b[64 + t] = s[t]; }

// three_dimensions<<<(2, 2, 3), (3, 2, 2)>>>
extern "C" __global__ void k(int* a) { int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y,
  z = blockIdx.z * blockDim.z + threadIdx.z; a[(z * 4 + y) * 6 + x] = x + 10 * y + 100 * z + 1000 * blockIdx.z; }
