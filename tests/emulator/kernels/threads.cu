// reduce_shared<<<4, 256>>>
extern "C" __global__ void k(const float* a, float* out, int n) {
  __shared__ float s[256]; int t = threadIdx.x, i = blockIdx.x * 256 + t;
  s[t] = i < n ? a[i] : 0.0f; __syncthreads();
  for (int d = 128; d > 0; d >>= 1) { if (t < d) s[t] += s[t + d]; __syncthreads(); }
  if (t == 0) out[blockIdx.x] = s[0]; }

// reduce_shuffle<<<5, 256>>>
extern "C" __global__ void k(const float* a, float* out) {
  __shared__ float s[8]; float v = a[blockIdx.x * 256 + threadIdx.x];
  for (int d = 16; d; d >>= 1) v += __shfl_down_sync(0xffffffffu, v, d);
  if (threadIdx.x % 32 == 0) s[threadIdx.x / 32] = v; __syncthreads();
  if (threadIdx.x < 32) { v = threadIdx.x < 8 ? s[threadIdx.x] : 0.0f;
    for (int d = 4; d; d >>= 1) v += __shfl_xor_sync(0xffffffffu, v, d);
    if (threadIdx.x == 0) out[blockIdx.x] = v; } }

// reduce_atomic<<<7, 128>>>
extern "C" __global__ void k(const float* a, float* out, int n) {
  int i = blockIdx.x * 128 + threadIdx.x; float v = i < n ? a[i] : 0.f;
  for (int d = 16; d; d >>= 1) v += __shfl_xor_sync(~0u, v, d);
  if ((threadIdx.x & 31) == 0) atomicAdd(out, v); }

// divergent_loops<<<2, 96>>>
extern "C" __global__ void k(int* out, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; int c = 0, v = i + 1;
  while (v != 1) { v = v & 1 ? 3 * v + 1 : v / 2; ++c; } if (i < n) out[i] = c; }

// early_exit<<<4, 64>>>
extern "C" __global__ void k(const float* a, float* b, int n) { int i = blockIdx.x * 64 + threadIdx.x;
  if (i >= n) return; if (a[i] < 0) { b[i] = -1; return; } b[i] = sqrtf(a[i]); }

// histogram_shared<<<3, 256>>>
extern "C" __global__ void k(const unsigned char* a, unsigned* h, int n) {
  __shared__ unsigned s[256]; s[threadIdx.x] = 0; __syncthreads();
  for (int i = blockIdx.x * 256 + threadIdx.x; i < n; i += 256 * gridDim.x) atomicAdd(&s[a[i]], 1u);
  __syncthreads(); atomicAdd(&h[threadIdx.x], s[threadIdx.x]); }

// scan_hillis_steele<<<3, 128>>>
extern "C" __global__ void k(const int* a, int* b) { __shared__ int s[2][128]; int t = threadIdx.x, p = 0;
  s[0][t] = a[blockIdx.x * 128 + t]; __syncthreads();
  for (int d = 1; d < 128; d *= 2) { s[1 - p][t] = s[p][t] + (t >= d ? s[p][t - d] : 0); p = 1 - p; __syncthreads(); }
  b[blockIdx.x * 128 + t] = s[p][t]; }

// softmax_rows<<<3, 128>>>
extern "C" __global__ void k(const float* a, float* b, int n) { const float* r = a + blockIdx.x * n; __shared__ float s[4];
  int t = threadIdx.x; float m = __int_as_float(0xff800000); for (int i = t; i < n; i += 128) m = fmaxf(m, r[i]);
  for (int d = 16; d; d >>= 1) m = fmaxf(m, __shfl_xor_sync(~0u, m, d));
  if (t % 32 == 0) s[t / 32] = m; __syncthreads(); m = fmaxf(fmaxf(s[0], s[1]), fmaxf(s[2], s[3])); __syncthreads();
  float z = 0; for (int i = t; i < n; i += 128) z += expf(r[i] - m);
  for (int d = 16; d; d >>= 1) z += __shfl_xor_sync(~0u, z, d);
  if (t % 32 == 0) s[t / 32] = z; __syncthreads(); z = s[0] + s[1] + s[2] + s[3];
  for (int i = t; i < n; i += 128) b[blockIdx.x * n + i] = expf(r[i] - m) / z; }

// ballot_compact<<<1, 32>>>
extern "C" __global__ void k(const int* a, int* out, int* count) { int t = threadIdx.x; int v = a[t];
  unsigned m = __ballot_sync(~0u, v > 0); int at = __popc(m & ((1u << t) - 1)); if (v > 0) out[at] = v;
  if (t == 0) *count = __popc(m); }

// switch_table<<<1, 64>>>
extern "C" __global__ void k(const int* a, int* b) { int t = threadIdx.x, v = a[t];
  switch (v) { case 0: b[t] = 5; break; case 1: b[t] = t * t; break; case 2: b[t] = -t; break; case 3: b[t] = t ^ 21; break;
  case 4: b[t] = t % 7; break; case 5: b[t] = 99; break; case 6: b[t] = t + v; break; default: b[t] = -1; } }

// named_barriers<<<2, 128>>>
extern "C" __global__ void k(const int* a, int* b) { __shared__ int s[128]; int t = threadIdx.x;
  if (t < 64) { s[t] = a[t]; asm volatile("bar.sync 1, 64;" ::: "memory"); b[t] = s[63 - t]; }
  else { s[t] = a[t] * 2; asm volatile("bar.sync 2, 64;" ::: "memory"); b[t] = s[191 - t]; } }

// sync_count<<<1, 70>>>
extern "C" __global__ void k(const int* a, int* b) { int n = __syncthreads_count(a[threadIdx.x] > 0);
  b[threadIdx.x] = n * 10 + __syncthreads_or(a[threadIdx.x] > 3) + 2 * __syncthreads_and(a[threadIdx.x] > -9); }

// compare_and_swap<<<2, 64>>>
extern "C" __global__ void k(const float* a, float* best) { int i = blockIdx.x * 64 + threadIdx.x; int* p = (int*)best;
  int old = *(volatile int*)p; while (__int_as_float(old) < a[i]) { int was = atomicCAS(p, old, __float_as_int(a[i]));
    if (was == old) break; old = was; } }

// add_by_compare_and_swap<<<3, 64>>>
extern "C" __global__ void k(const float* a, double* sum) { unsigned long long* p = (unsigned long long*)sum; unsigned long long old = *p, was;
  do { was = old; old = atomicCAS(p, was, __double_as_longlong(a[blockIdx.x * 64 + threadIdx.x] + __longlong_as_double(was)));
  } while (was != old); }

// greatest_if_greater<<<3, 64>>>
extern "C" __global__ void k(const int* a, int* most) { int v = a[blockIdx.x * 64 + threadIdx.x]; if (v > *most) atomicMax(most, v); }

// redux_and_match<<<1, 64>>>
extern "C" __global__ void k(const int* a, int* b) { int t = threadIdx.x; int m = __reduce_max_sync(~0u, a[t]);
  unsigned s = __match_any_sync(~0u, a[t]); b[t] = m * 100 + __popc(s); }

// shuffle_in_a_loop_of_some_lanes<<<2, 96>>>
extern "C" __global__ void k(const int* a, int* b) { int t = threadIdx.x, v = a[t];
  if (t % 32 < 16) { for (int i = 0; i < 1 + t / 32; ++i) v += __shfl_xor_sync(0xffffu, v, 8); } else v = -v; b[t] = v; }

// short_warp_shuffle<<<3, 40>>>
extern "C" __global__ void k(const int* a, int* b) { int t = threadIdx.x; b[t] = __shfl_up_sync(0xffffffffu, a[t], 1); }

// producer_consumer<<<1, 64>>>
extern "C" __global__ void k(const int* a, int* b) { __shared__ int s[32]; int t = threadIdx.x;
  if (t < 32) { s[t] = a[t] * 3; asm volatile("bar.arrive 1, 64;" ::: "memory"); }
  else { asm volatile("bar.sync 1, 64;" ::: "memory"); b[t - 32] = s[63 - t]; } }

// last_block_sums<<<6, 64>>>
__device__ unsigned done = 0; extern "C" __global__ void k(const float* a, float* part, float* out) {
  __shared__ float s[64]; __shared__ bool last; int t = threadIdx.x; s[t] = a[blockIdx.x * 64 + t]; __syncthreads();
  if (t == 0) { float v = 0; for (int i = 0; i < 64; ++i) v += s[i]; part[blockIdx.x] = v; __threadfence();
    last = atomicAdd(&done, 1u) == gridDim.x - 1; } __syncthreads();
  if (last && t == 0) { float v = 0; for (int i = 0; i < gridDim.x; ++i) v += part[i]; *out = v; } }

// exit_before_barrier<<<2, 96>>>
extern "C" __global__ void k(const int* a, int* b) { __shared__ int s[96]; int t = threadIdx.x; if (t >= 64) return;
  s[t] = a[t]; asm volatile("bar.sync 1, 64;" ::: "memory"); b[t] = s[63 - t]; }
