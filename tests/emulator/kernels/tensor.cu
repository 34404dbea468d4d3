// async_copy<<<1, 32>>>
extern "C" __global__ void k(const float* a, float* b) { __shared__ __align__(16) float s[2][128]; int t = threadIdx.x; float v = 0;
  auto copy = [&](int i) { unsigned d = (unsigned)__cvta_generic_to_shared(&s[i & 1][t * 4]);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(d), "l"(a + i * 128 + t * 4));
    asm volatile("cp.async.commit_group;"); };
  copy(0); for (int i = 0; i < 6; ++i) { if (i < 5) { copy(i + 1); asm volatile("cp.async.wait_group 1;"); }
    else asm volatile("cp.async.wait_group 0;"); __syncthreads();
    for (int j = 0; j < 4; ++j) v += s[i & 1][127 - (t + 32 * j)]; __syncthreads(); } b[t] = v; }

// mma_f16<<<1, 32>>>
extern "C" __global__ void k(const unsigned* a, const unsigned* b, float* c) { int l = threadIdx.x, g = l / 4, q = l % 4;
  unsigned a0 = a[g * 8 + q], a1 = a[(g + 8) * 8 + q], a2 = a[g * 8 + q + 4], a3 = a[(g + 8) * 8 + q + 4];
  unsigned b0 = b[g * 8 + q], b1 = b[g * 8 + q + 4]; float d[4] = {0, 0, 0, 0};
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  c[g * 8 + q * 2] = d[0]; c[g * 8 + q * 2 + 1] = d[1]; c[(g + 8) * 8 + q * 2] = d[2]; c[(g + 8) * 8 + q * 2 + 1] = d[3]; }

// ldmatrix_mma<<<1, 32>>>
extern "C" __global__ void k(const unsigned short* a, const unsigned short* b, float* c) { __shared__ __align__(16) unsigned short s[16][24], u[8][24];
  int l = threadIdx.x; for (int i = l; i < 256; i += 32) s[i / 16][i % 16] = a[i]; for (int i = l; i < 128; i += 32) u[i / 16][i % 16] = b[i];
  __syncwarp(); unsigned f[4], g[2]; float d[4] = {0, 0, 0, 0};
  unsigned p = (unsigned)__cvta_generic_to_shared(&s[l % 16][l / 16 * 8]), q = (unsigned)__cvta_generic_to_shared(&u[l % 8][l / 8 % 2 * 8]);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(f[0]), "=r"(f[1]), "=r"(f[2]), "=r"(f[3]) : "r"(p));
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];" : "=r"(g[0]), "=r"(g[1]) : "r"(q));
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(f[0]), "r"(f[1]), "r"(f[2]), "r"(f[3]), "r"(g[0]), "r"(g[1]));
  for (int i = 0; i < 4; ++i) c[(l / 4 + i / 2 * 8) * 8 + l % 4 * 2 + i % 2] = d[i]; }

// mma_int8<<<1, 32>>>
extern "C" __global__ void k(const int* a, const int* b, int* c) { int l = threadIdx.x, g = l / 4, q = l % 4; int d[4] = {0, 0, 0, 0};
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
    : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]) : "r"(a[g * 8 + q]), "r"(a[(g + 8) * 8 + q]), "r"(a[g * 8 + q + 4]),
      "r"(a[(g + 8) * 8 + q + 4]), "r"(b[g * 8 + q]), "r"(b[g * 8 + q + 4]));
  for (int i = 0; i < 4; ++i) c[(g + i / 2 * 8) * 8 + q * 2 + i % 2] = d[i]; }

// mma_tf32<<<1, 32>>>
extern "C" __global__ void k(const unsigned* a, const unsigned* b, float* c) { int l = threadIdx.x, g = l / 4, q = l % 4; float d[4] = {0, 0, 0, 0};
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[g * 8 + q]), "r"(a[(g + 8) * 8 + q]), "r"(a[g * 8 + q + 4]),
      "r"(a[(g + 8) * 8 + q + 4]), "r"(b[g * 8 + q]), "r"(b[g * 8 + q + 4]));
  for (int i = 0; i < 4; ++i) c[(g + i / 2 * 8) * 8 + q * 2 + i % 2] = d[i]; }

// mma_tf32_rounded<<<1, 32>>>
extern "C" __global__ void k(const float* a, const float* b, float* c) { int l = threadIdx.x, g = l / 4, q = l % 4; float d[4] = {0, 0, 0, 0}; unsigned f[3];
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(f[0]) : "f"(a[g * 4 + q])); asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(f[1]) : "f"(a[(g + 8) * 4 + q]));
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(f[2]) : "f"(b[g * 4 + q]));
  asm("mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(f[0]), "r"(f[1]), "r"(f[2]));
  for (int i = 0; i < 4; ++i) c[(g + i / 2 * 8) * 8 + q * 2 + i % 2] = d[i]; }

// three_stages<<<1, 32>>>
extern "C" __global__ void k(const float* a, float* b, int n) { __shared__ __align__(16) float s[3][128]; int t = threadIdx.x; float v = 0;
  auto copy = [&](int i) { unsigned d = (unsigned)__cvta_generic_to_shared(&s[i % 3][t * 4]);
    if (i < n) asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(d), "l"(a + i * 128 + t * 4));
    asm volatile("cp.async.commit_group;"); };
  copy(0); copy(1);
  for (int i = 0; i < n; ++i) { asm volatile("cp.async.wait_group 1;"); __syncthreads(); copy(i + 2);
    for (int j = 0; j < 4; ++j) v += (i + 1) * s[i % 3][127 - (t + 32 * j)]; } b[t] = v; }
