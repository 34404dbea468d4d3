// matmul(A[32, 32] float16, B[32, 64] float16)
//   C[i, j] = sum[k < 32] A[i, k] * B[k, j]
// 
// Written by ekc VERSION from the schedule
//   ekc.Schedule(op)
//       .split("i", (2, 4, 2))
//       .split("j", (2, 8, 2))
//       .split("k", (8,))
//       .reorder("i.0", "j.0", "k.0", "i.2", "j.2", "k.1", "i.1", "i.3", "j.1", "j.3")
//       .bind("i.0", "block.y")
//       .bind("j.0", "block.x")
//       .bind("i.2", "thread.y")
//       .bind("j.2", "thread.x")
//       .bind("i.1", "vthread")
//       .bind("j.1", "vthread")
//       .cache_write("C")
//       .cache_read("A", "shared", at="k.0", vector=8, swizzle=8)
//       .cache_read("B", "shared", at="k.0", vector=8, swizzle=8)
//       .pipeline("k.0", stages=3, copy="async")
//       .unroll("k.1", factor=4)
// digest 4514a4e85311b25b
// A float16 in memory. Arithmetic is done in float; no header is needed.
struct __align__(2) half_t {
    unsigned short bits;
};
static __device__ __forceinline__ float from_half(half_t h)
{
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h.bits));
    return f;
}
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

// Index of an element in a swizzled tile: chunks of `size` elements change places by the number of their line.
template <unsigned int chunks, unsigned int size>
static __device__ __forceinline__ unsigned int swizzle_index(unsigned int element)
{
    return element ^ (element / (8 * size) % chunks * size);
}

// grid 2 x 2 x 1, block 8 x 4 x 1
extern "C" __global__ void __launch_bounds__(32)
ekc_matmul(const half_t* __restrict__ A, const half_t* __restrict__ B, half_t* __restrict__ C)
{
    __shared__ __align__(16) half_t A_shared[3][128];
    __shared__ __align__(16) half_t B_shared[3][256];
    alignas(16) float C_acc[2][2][2][2];
    const int i_0 = blockIdx.y;
    const int j_0 = blockIdx.x;
    const int i_2 = threadIdx.y;
    const int j_2 = threadIdx.x;
    const int thread = threadIdx.y * 8 + threadIdx.x;
    #pragma unroll
    for (int i_1 = 0; i_1 < 2; ++i_1) {
        #pragma unroll
        for (int i_3 = 0; i_3 < 2; ++i_3) {
            #pragma unroll
            for (int j_1 = 0; j_1 < 2; ++j_1) {
                #pragma unroll
                for (int j_3 = 0; j_3 < 2; ++j_3) {
                    C_acc[i_1][i_3][j_1][j_3] = 0.0f;
                }
            }
        }
    }
    // 3 copies of each tile: the next 2 are in flight while one is used
    #pragma unroll 1
    for (int k_0 = 0; k_0 < 2; ++k_0) {
        const int k_0_copy = k_0;
        // copy A[i_0 * 16 : 16, k_0 * 8 : 8] -> A_shared
        #pragma unroll
        for (int round = 0; round < 1; ++round) {
            const int element = (round * 32 + thread) * 8;
            if (element < 128) {
                const int i = element / 8;
                const int k = element % 8;
                copy_async_16(shared_address(&A_shared[k_0_copy][swizzle_index<8, 8>(i * 8 + k)]), &A[(i_0 * 16 + i) * 32 + k_0 * 8 + k]);
            }
        }
        // copy B[k_0 * 8 : 8, j_0 * 32 : 32] -> B_shared
        #pragma unroll
        for (int round = 0; round < 1; ++round) {
            const int element = (round * 32 + thread) * 8;
            const int k = element / 32;
            const int j = element % 32;
            copy_async_16(shared_address(&B_shared[k_0_copy][swizzle_index<8, 8>(k * 32 + j)]), &B[(k_0 * 8 + k) * 64 + j_0 * 32 + j]);
        }
        commit_copies();
    }
    int k_0_slot = 0, k_0_free = 2;
    #pragma unroll 1
    for (int k_0_now = 0; k_0_now < 4; ++k_0_now) {
        wait_copies<1>();
        __syncthreads();
        if (k_0_now + 2 < 4) {
            const int k_0 = k_0_now + 2;
            const int k_0_copy = k_0_free;
            // copy A[i_0 * 16 : 16, k_0 * 8 : 8] -> A_shared
            #pragma unroll
            for (int round = 0; round < 1; ++round) {
                const int element = (round * 32 + thread) * 8;
                if (element < 128) {
                    const int i = element / 8;
                    const int k = element % 8;
                    copy_async_16(shared_address(&A_shared[k_0_copy][swizzle_index<8, 8>(i * 8 + k)]), &A[(i_0 * 16 + i) * 32 + k_0 * 8 + k]);
                }
            }
            // copy B[k_0 * 8 : 8, j_0 * 32 : 32] -> B_shared
            #pragma unroll
            for (int round = 0; round < 1; ++round) {
                const int element = (round * 32 + thread) * 8;
                const int k = element / 32;
                const int j = element % 32;
                copy_async_16(shared_address(&B_shared[k_0_copy][swizzle_index<8, 8>(k * 32 + j)]), &B[(k_0 * 8 + k) * 64 + j_0 * 32 + j]);
            }
        }
        commit_copies();
        {
            const int k_0_copy = k_0_slot;
            #pragma unroll 4
            for (int k_1 = 0; k_1 < 8; ++k_1) {
                #pragma unroll
                for (int i_1 = 0; i_1 < 2; ++i_1) {
                    #pragma unroll
                    for (int i_3 = 0; i_3 < 2; ++i_3) {
                        #pragma unroll
                        for (int j_1 = 0; j_1 < 2; ++j_1) {
                            #pragma unroll
                            for (int j_3 = 0; j_3 < 2; ++j_3) {
                                C_acc[i_1][i_3][j_1][j_3] += from_half(A_shared[k_0_copy][swizzle_index<8, 8>(i_1 * 64 + i_2 * 16 + i_3 * 8 + k_1)]) * from_half(B_shared[k_0_copy][swizzle_index<8, 8>(k_1 * 32 + j_1 * 16 + j_2 * 2 + j_3)]);
                            }
                        }
                    }
                }
            }
        }
        k_0_free = k_0_slot;
        k_0_slot = k_0_slot == 2 ? 0 : k_0_slot + 1;
    }
    // write C_acc -> C
    #pragma unroll
    for (int i_1 = 0; i_1 < 2; ++i_1) {
        #pragma unroll
        for (int i_3 = 0; i_3 < 2; ++i_3) {
            #pragma unroll
            for (int j_1 = 0; j_1 < 2; ++j_1) {
                #pragma unroll
                for (int j_3 = 0; j_3 < 2; ++j_3) {
                    C[(i_0 * 16 + i_2 * 2 + i_1 * 8 + i_3) * 64 + j_0 * 32 + j_2 * 2 + j_1 * 16 + j_3] = to_half(C_acc[i_1][i_3][j_1][j_3]);
                }
            }
        }
    }
}
