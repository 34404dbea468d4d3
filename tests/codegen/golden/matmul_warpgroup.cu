// matmul(A[256, 256] float16, B[256, 256] float16)
//   C[i, j] = sum[k < 256] A[i, k] * B[k, j]
// 
// Written by ekc VERSION from the schedule
//   ekc.Schedule(op)
//       .split("i", (2, 1, 4, 2, 8))
//       .split("j", (1, 16, 4, 2))
//       .split("k", (4, 16))
//       .reorder("i.0", "j.0", "i.1", "i.3", "i.5", "j.3", "k.0", "k.1", "i.2", "j.1", "j.2", "i.4", "j.4", "k.2")
//       .bind("i.0", "block.y")
//       .bind("j.0", "block.x")
//       .bind("i.1", "thread.y")
//       .bind("i.3", "thread.y")
//       .bind("i.5", "thread.x")
//       .bind("j.3", "thread.x")
//       .cache_write("C", vector=2)
//       .cache_read("A", "shared", at="k.0", vector=8, swizzle=8, panel=64)
//       .cache_read("B", "shared", at="k.0", vector=8, swizzle=8, panel=64)
//       .pipeline("k.0", stages=3, copy="async")
//       .unroll("k.1")
//       .tensorize("k.2", "wgmma.m64nNk16")
// digest d543dc411dcba9de
// A float16 in memory. Arithmetic is done in float; no header is needed.
struct __align__(2) half_t {
    unsigned short bits;
};
static __device__ __forceinline__ half_t to_half(float f)
{
    half_t h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h.bits) : "f"(f));
    return h;
}

// Address of an element in shared memory.
static __device__ __forceinline__ unsigned int shared_address(const void* element)
{
    return static_cast<unsigned int>(__cvta_generic_to_shared(element));
}
// Keeps a number in a register; otherwise the compiler computes it again in every iteration.
static __device__ __forceinline__ unsigned int keep_in_register(unsigned int number)
{
    asm volatile("" : "+r"(number));
    return number;
}

// Asynchronous copies to shared memory; those with a condition write zeros where it is false.
static __device__ __forceinline__ void copy_async_16(unsigned int to, const void* from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" : : "r"(to), "l"(from));
}
// The copies issued since the last call become one group.
static __device__ __forceinline__ void commit_copies()
{
    asm volatile("cp.async.commit_group;");
}
// Waits until at most the newest `pending` groups are in flight.
template <int pending>
static __device__ __forceinline__ void wait_copies()
{
    asm volatile("cp.async.wait_group %0;" : : "n"(pending) : "memory");
}

#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#error "wgmma exists on sm_90a only: compile this file for that target"
#endif
// Four warps multiply tiles in shared memory. The descriptor of a tile holds its layout and its address in units of 16 bytes.
template <unsigned long long layout>
static __device__ __forceinline__ unsigned long long make_descriptor(unsigned int address)
{
    return layout | address >> 4;
}
// Makes what this thread wrote to shared memory visible to products that start after the next barrier.
static __device__ __forceinline__ void fence_async_proxy()
{
    asm volatile("fence.proxy.async.shared::cta;" : : : "memory");
}
static __device__ __forceinline__ void begin_products()
{
    asm volatile("wgmma.fence.sync.aligned;" : : : "memory");
}
static __device__ __forceinline__ void commit_products()
{
    asm volatile("wgmma.commit_group.sync.aligned;" : : : "memory");
}
// Products run asynchronously until this wait; no use of a sum may be moved before it.
template <int sums, typename type>
static __device__ __forceinline__ void wait_for_products(type* c)
{
    asm volatile("wgmma.wait_group.sync.aligned 0;" : : : "memory");
    #pragma unroll
    for (int i = 0; i < sums; ++i) {
        asm volatile("" : "+f"(c[i]));
    }
}
// wgmma.m64n128k16 of float16: c += a * b. The sums of a thread start at `c`; strides from strip to strip of 8 columns, between halves of the rows, in pairs.
template <int strip, int half, int pair>
static __device__ __forceinline__ void wgmma_m64n128k16_float16_along_across(float* c, unsigned long long a, unsigned long long b)
{
    asm volatile("{ .reg .pred adds; setp.ne.b32 adds, 1, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "
                 "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
                 "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, "
                 "%59, %60, %61, %62, %63}, %64, %65, adds, 1, 1, 0, 1; }"
                 : "+f"(c[0]), "+f"(c[pair]), "+f"(c[half]), "+f"(c[half + pair]),
                   "+f"(c[strip]), "+f"(c[strip + pair]), "+f"(c[strip + half]), "+f"(c[strip + half + pair]),
                   "+f"(c[2 * strip]), "+f"(c[2 * strip + pair]), "+f"(c[2 * strip + half]), "+f"(c[2 * strip + half + pair]),
                   "+f"(c[3 * strip]), "+f"(c[3 * strip + pair]), "+f"(c[3 * strip + half]), "+f"(c[3 * strip + half + pair]),
                   "+f"(c[4 * strip]), "+f"(c[4 * strip + pair]), "+f"(c[4 * strip + half]), "+f"(c[4 * strip + half + pair]),
                   "+f"(c[5 * strip]), "+f"(c[5 * strip + pair]), "+f"(c[5 * strip + half]), "+f"(c[5 * strip + half + pair]),
                   "+f"(c[6 * strip]), "+f"(c[6 * strip + pair]), "+f"(c[6 * strip + half]), "+f"(c[6 * strip + half + pair]),
                   "+f"(c[7 * strip]), "+f"(c[7 * strip + pair]), "+f"(c[7 * strip + half]), "+f"(c[7 * strip + half + pair]),
                   "+f"(c[8 * strip]), "+f"(c[8 * strip + pair]), "+f"(c[8 * strip + half]), "+f"(c[8 * strip + half + pair]),
                   "+f"(c[9 * strip]), "+f"(c[9 * strip + pair]), "+f"(c[9 * strip + half]), "+f"(c[9 * strip + half + pair]),
                   "+f"(c[10 * strip]), "+f"(c[10 * strip + pair]), "+f"(c[10 * strip + half]), "+f"(c[10 * strip + half + pair]),
                   "+f"(c[11 * strip]), "+f"(c[11 * strip + pair]), "+f"(c[11 * strip + half]), "+f"(c[11 * strip + half + pair]),
                   "+f"(c[12 * strip]), "+f"(c[12 * strip + pair]), "+f"(c[12 * strip + half]), "+f"(c[12 * strip + half + pair]),
                   "+f"(c[13 * strip]), "+f"(c[13 * strip + pair]), "+f"(c[13 * strip + half]), "+f"(c[13 * strip + half + pair]),
                   "+f"(c[14 * strip]), "+f"(c[14 * strip + pair]), "+f"(c[14 * strip + half]), "+f"(c[14 * strip + half + pair]),
                   "+f"(c[15 * strip]), "+f"(c[15 * strip + pair]), "+f"(c[15 * strip + half]), "+f"(c[15 * strip + half + pair])
                 : "l"(a), "l"(b));
}

// Index of an element in a swizzled tile: chunks of `size` elements change places by the number of their line.
template <unsigned int chunks, unsigned int size>
static __device__ __forceinline__ unsigned int swizzle_index(unsigned int element)
{
    return element ^ (element / (8 * size) % chunks * size);
}

// Index of an element in a tile stored in panels: all rows of the first panel, then those of the next.
template <unsigned int width, unsigned int rows, unsigned int panel>
static __device__ __forceinline__ unsigned int panel_index(unsigned int element)
{
    const unsigned int row = element / width, column = element % width;
    return column / panel * (rows * panel) + row * panel + column % panel;
}

// grid 2 x 2 x 1, block 32 x 8 x 1
extern "C" __global__ void __launch_bounds__(256)
ekc_matmul(const half_t* __restrict__ A, const half_t* __restrict__ B, half_t* __restrict__ C)
{
    extern __shared__ __align__(1024) unsigned char shared_memory_1024[];
    half_t (&A_shared)[3][8192] = *reinterpret_cast<half_t (*)[3][8192]>(shared_memory_1024 + 0);
    half_t (&B_shared)[3][8192] = *reinterpret_cast<half_t (*)[3][8192]>(shared_memory_1024 + 49152);
    alignas(16) float C_acc[1][2][16][2];
    const int i_0 = blockIdx.y;
    const int j_0 = blockIdx.x;
    const int i_1 = threadIdx.y / 4;
    const int i_3 = threadIdx.y % 4;
    const int i_5 = threadIdx.x / 4;
    const int j_3 = threadIdx.x % 4;
    const int thread = threadIdx.y * 32 + threadIdx.x;
    #pragma unroll
    for (int i_4 = 0; i_4 < 2; ++i_4) {
        #pragma unroll
        for (int d2 = 0; d2 < 16; ++d2) {
            #pragma unroll
            for (int j_4 = 0; j_4 < 2; ++j_4) {
                C_acc[0][i_4][d2][j_4] = 0.0f;
            }
        }
    }
    // source offsets (tile 0) and shared addresses (copy 0) of the rounds of A_shared
    const half_t* A_shared_pointer = A;
    int A_shared_offset;
    unsigned int A_shared_address;
    {
        constexpr int round = 0;
        const int i = thread * 8 / 64 + round * 32;
        const int k = thread * 8 % 64;
        A_shared_offset = (i_0 * 128 + i) * 256 + k;
        A_shared_address = keep_in_register(shared_address(&A_shared[0][swizzle_index<8, 8>(panel_index<64, 128, 64>(i * 64 + k))]));
    }
    // source offsets (tile 0) and shared addresses (copy 0) of the rounds of B_shared
    const half_t* B_shared_pointer = B;
    int B_shared_offset;
    unsigned int B_shared_address;
    {
        constexpr int round = 0;
        const int k = thread * 8 / 128 + round * 16;
        const int j = thread * 8 % 128;
        B_shared_offset = k * 256 + j_0 * 128 + j;
        B_shared_address = keep_in_register(shared_address(&B_shared[0][swizzle_index<8, 8>(panel_index<128, 64, 64>(k * 128 + j))]));
    }
    // addresses of the rows of A_shared, copy 0
    unsigned int A_shared_start;
    A_shared_start = keep_in_register(shared_address(&A_shared[0][swizzle_index<8, 8>(panel_index<64, 128, 64>(i_1 * 4096))]));
    // addresses of the rows of B_shared, copy 0
    unsigned int B_shared_start;
    B_shared_start = keep_in_register(shared_address(&B_shared[0][swizzle_index<8, 8>(panel_index<128, 64, 64>(0))]));
    // 3 copies of each tile: the next 2 are in flight while one is used
    #pragma unroll 1
    for (int k_0 = 0; k_0 < 2; ++k_0) {
        const int k_0_copy = k_0;
        // copy A[i_0 * 128 : 128, k_0 * 64 : 64] -> A_shared
        #pragma unroll
        for (int round = 0; round < 4; ++round) {
            copy_async_16(A_shared_address + round * 4096 + k_0_copy * 16384, &A_shared_pointer[A_shared_offset + round * 8192]);
        }
        // copy B[k_0 * 64 : 64, j_0 * 128 : 128] -> B_shared
        #pragma unroll
        for (int round = 0; round < 4; ++round) {
            copy_async_16(B_shared_address + round * 2048 + k_0_copy * 16384, &B_shared_pointer[B_shared_offset + round * 4096]);
        }
        A_shared_pointer += 64;
        B_shared_pointer += 16384;
        commit_copies();
    }
    int k_0_slot = 0, k_0_free = 2;
    #pragma unroll 1
    for (int k_0_now = 0; k_0_now < 4; ++k_0_now) {
        wait_copies<1>();
        fence_async_proxy();
        __syncthreads();
        {
            const int k_0_copy = k_0_slot;
            begin_products();
            #pragma unroll
            for (int k_1 = 0; k_1 < 4; ++k_1) {
                #pragma unroll
                for (int i_2 = 0; i_2 < 1; ++i_2) {
                    #pragma unroll
                    for (int j_1 = 0; j_1 < 1; ++j_1) {
                        wgmma_m64n128k16_float16_along_across<2, 32, 1>(&C_acc[i_2][0][j_1 * 16][0], make_descriptor<0x4000004000010000>(A_shared_start + k_0_copy * 16384 + i_2 * 8192 + (k_1 * 16) * 2), make_descriptor<0x4000004002000000>(B_shared_start + k_0_copy * 16384 + k_1 * 2048 + j_1 * 128));
                    }
                }
            }
            commit_products();
        }
        if (k_0_now + 2 < 4) {
            const int k_0_copy = k_0_free;
            // copy A[i_0 * 128 : 128, k_0 * 64 : 64] -> A_shared
            #pragma unroll
            for (int round = 0; round < 4; ++round) {
                copy_async_16(A_shared_address + round * 4096 + k_0_copy * 16384, &A_shared_pointer[A_shared_offset + round * 8192]);
            }
            // copy B[k_0 * 64 : 64, j_0 * 128 : 128] -> B_shared
            #pragma unroll
            for (int round = 0; round < 4; ++round) {
                copy_async_16(B_shared_address + round * 2048 + k_0_copy * 16384, &B_shared_pointer[B_shared_offset + round * 4096]);
            }
        }
        A_shared_pointer += 64;
        B_shared_pointer += 16384;
        commit_copies();
        wait_for_products<64>(&C_acc[0][0][0][0]);
        k_0_free = k_0_slot;
        k_0_slot = k_0_slot == 2 ? 0 : k_0_slot + 1;
    }
    // write C_acc -> C
    #pragma unroll
    for (int i_4 = 0; i_4 < 2; ++i_4) {
        #pragma unroll
        for (int d2 = 0; d2 < 16; ++d2) {
            {
                alignas(4) const half_t packed[2] = { to_half(C_acc[0][i_4][d2][0]), to_half(C_acc[0][i_4][d2][1]) };
                *reinterpret_cast<unsigned int*>(&C[(i_0 * 128 + i_1 * 64 + i_3 * 16 + i_5 + i_4 * 8) * 256 + j_0 * 128 + j_3 * 2 + d2 * 8]) = *reinterpret_cast<const unsigned int*>(&packed[0]);
            }
        }
    }
}
