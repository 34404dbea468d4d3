// integer_division<<<1, 100>>>
extern "C" __global__ void k(const int* a, const int* b, int* q, int n) { int i = threadIdx.x;
  if (i < n) q[i] = a[i] / b[i] * 1000 + a[i] % b[i]; }

// wide_integers<<<1, 64>>>
extern "C" __global__ void k(const long long* a, unsigned long long* b) { int i = threadIdx.x;
  unsigned long long v = a[i]; v ^= v >> 33; v *= 0xff51afd7ed558ccdULL; v ^= v >> 33; b[i] = v + __umul64hi(v, 12345678901ULL); }

// bytes_and_shorts<<<1, 50>>>
extern "C" __global__ void k(const signed char* a, const unsigned short* b, short* c) { int i = threadIdx.x;
  c[i] = (short)(a[i] * 3 - (b[i] >> 2)); }

// half_arithmetic<<<1, 64>>>
extern "C" __global__ void k(const unsigned short* a, const unsigned short* b, unsigned short* c) { int i = threadIdx.x;
  unsigned short r; asm("{ .reg .b16 t; mul.f16 t, %1, %2; fma.rn.f16 %0, t, %1, %2; }" : "=h"(r) : "h"(a[i]), "h"(b[i]));
  c[i] = r; }

// doubles<<<1, 40>>>
extern "C" __global__ void k(const double* a, double* b) { int i = threadIdx.x; b[i] = sqrt(a[i] * a[i] + 1.0) / (a[i] + 3.0); }

// fast_math<<<1, 64>>>
extern "C" __global__ void k(const float* a, float* b) { int i = threadIdx.x; float x = a[i];
  b[i] = __expf(x) * __sinf(x) + __cosf(x) * rsqrtf(x * x + 1) + __fdividef(x, 3.0f) + __logf(x * x + 1); }

// bit_tricks<<<1, 64>>>
extern "C" __global__ void k(const unsigned* a, unsigned* b) { int i = threadIdx.x; unsigned v = a[i];
  b[i] = __brev(v) ^ (__popc(v) << 8) ^ __clz(v) ^ __byte_perm(v, ~v, 0x5140) ^ __funnelshift_l(v, 77u, i); }

// half2_fma<<<1, 32>>>
extern "C" __global__ void k(const unsigned* a, const unsigned* b, unsigned* c) { int i = threadIdx.x; unsigned r;
  asm("fma.rn.f16x2 %0, %1, %2, %1;" : "=r"(r) : "r"(a[i]), "r"(b[i])); c[i] = r; }

// bfloat16<<<1, 64>>>
extern "C" __global__ void k(const float* a, float* b) { int i = threadIdx.x; unsigned short h, r;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(a[i])); asm("fma.rn.bf16 %0, %1, %1, %1;" : "=h"(r) : "h"(h));
  b[i] = __int_as_float((int)r << 16); }

// wide_division<<<1, 64>>>
extern "C" __global__ void k(const long long* a, long long* b) { int i = threadIdx.x; long long x = a[i], y = a[63 - i] >> 40;
  b[i] = __mul64hi(x, a[63 - i]) + x / (y | 1) + x % (y | 1); }

// int8_dot<<<1, 32>>>
extern "C" __global__ void k(const signed char* a, const int* w, int* b, signed char* c) { int i = threadIdx.x, s = 0; const int* v = (const int*)a;
  for (int j = 0; j < 4; ++j) asm("dp4a.s32.s32 %0, %1, %2, %0;" : "+r"(s) : "r"(v[4 * i + j]), "r"(w[j]));
  b[i] = s; c[i] = (signed char)(s > 127 ? 127 : s < -128 ? -128 : s); }
