// matmul(A[33, 36] float32, B[36, 44] float32)
//   C[i, j] = sum[k < 36] A[i, k] * B[k, j]
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
//       .cache_read("A", "shared", at="k.0", order=(1, 0), pad=4)
//       .cache_read("B", "shared", at="k.0", vector=4)
//       .pipeline("k.0", stages=3, copy="async")
//       .unroll("k.1", factor=4)
// digest 54fbe1244e882b32
// Address of an element in shared memory.
static __device__ __forceinline__ unsigned int shared_address(const void* element)
{
    return static_cast<unsigned int>(__cvta_generic_to_shared(element));
}

// Asynchronous copies to shared memory; those with a condition write zeros where it is false.
static __device__ __forceinline__ void copy_async_4_or_zeros(unsigned int to, const void* from, bool inside)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" : : "r"(to), "l"(from), "r"(inside ? 4 : 0));
}
static __device__ __forceinline__ void copy_async_16_or_zeros(unsigned int to, const void* from, bool inside)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" : : "r"(to), "l"(from), "r"(inside ? 16 : 0));
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

// grid 2 x 3 x 1, block 8 x 4 x 1
extern "C" __global__ void __launch_bounds__(32)
ekc_matmul(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C)
{
    __shared__ __align__(16) float A_shared[3][8][20];
    __shared__ __align__(16) float B_shared[3][8][32];
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
        for (int round = 0; round < 4; ++round) {
            const int i = thread / 8 + round * 4;
            const int k = thread % 8;
            copy_async_4_or_zeros(shared_address(&A_shared[k_0_copy][k][i]), &A[(i_0 * 16 + i) * 36 + k_0 * 8 + k], i_0 * 16 + i < 33 && k_0 * 8 + k < 36);
        }
        // copy B[k_0 * 8 : 8, j_0 * 32 : 32] -> B_shared
        #pragma unroll
        for (int round = 0; round < 2; ++round) {
            const int k = thread * 4 / 32 + round * 4;
            const int j = thread * 4 % 32;
            copy_async_16_or_zeros(shared_address(&B_shared[k_0_copy][k][j]), &B[(k_0 * 8 + k) * 44 + j_0 * 32 + j], k_0 * 8 + k < 36 && j_0 * 32 + j < 44);
        }
        commit_copies();
    }
    int k_0_slot = 0, k_0_free = 2;
    #pragma unroll 1
    for (int k_0_now = 0; k_0_now < 5; ++k_0_now) {
        wait_copies<1>();
        __syncthreads();
        if (k_0_now + 2 < 5) {
            const int k_0 = k_0_now + 2;
            const int k_0_copy = k_0_free;
            // copy A[i_0 * 16 : 16, k_0 * 8 : 8] -> A_shared
            #pragma unroll
            for (int round = 0; round < 4; ++round) {
                const int i = thread / 8 + round * 4;
                const int k = thread % 8;
                copy_async_4_or_zeros(shared_address(&A_shared[k_0_copy][k][i]), &A[(i_0 * 16 + i) * 36 + k_0 * 8 + k], i_0 * 16 + i < 33 && k_0 * 8 + k < 36);
            }
            // copy B[k_0 * 8 : 8, j_0 * 32 : 32] -> B_shared
            #pragma unroll
            for (int round = 0; round < 2; ++round) {
                const int k = thread * 4 / 32 + round * 4;
                const int j = thread * 4 % 32;
                copy_async_16_or_zeros(shared_address(&B_shared[k_0_copy][k][j]), &B[(k_0 * 8 + k) * 44 + j_0 * 32 + j], k_0 * 8 + k < 36 && j_0 * 32 + j < 44);
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
                                C_acc[i_1][i_3][j_1][j_3] += A_shared[k_0_copy][k_1][i_1 * 8 + i_2 * 2 + i_3] * B_shared[k_0_copy][k_1][j_1 * 16 + j_2 * 2 + j_3];
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
                    if (i_0 * 16 + i_2 * 2 + i_1 * 8 + i_3 < 33 && j_0 * 32 + j_2 * 2 + j_1 * 16 + j_3 < 44) {
                        C[(i_0 * 16 + i_2 * 2 + i_1 * 8 + i_3) * 44 + j_0 * 32 + j_2 * 2 + j_1 * 16 + j_3] = C_acc[i_1][i_3][j_1][j_3];
                    }
                }
            }
        }
    }
}
