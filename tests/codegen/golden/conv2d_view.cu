// conv2d(X[2, 14, 14, 32] float16, W[64, 3, 3, 32] float16)
//   Y[n, p, q, o] = sum[r < 3, s < 3, c < 32] X[n, p + r - 1, q + s - 1, c] * W[o, r, s, c]
// 
// Written by ekc VERSION from the schedule
//   ekc.Schedule(op)
//       .fuse("n", "p")
//       .fuse("n_p", "q")
//       .split("n_p_q", (2, 2, 2, 8))
//       .split("o", (2, 4, 4, 2))
//       .split("c", (2, 16))
//       .reorder("n_p_q.0", "o.0", "n_p_q.1", "o.1", "n_p_q.4", "o.3", "r", "s", "c.0", "c.1", "n_p_q.2", "o.2", "n_p_q.3", "o.4", "c.2")
//       .bind("n_p_q.0", "block.y")
//       .bind("o.0", "block.x")
//       .bind("n_p_q.1", "thread.y")
//       .bind("o.1", "thread.y")
//       .bind("n_p_q.4", "thread.x")
//       .bind("o.3", "thread.x")
//       .cache_write("Y", vector=2)
//       .cache_read("X", "shared", at="c.0", vector=8, pad=8)
//       .cache_read("W", "shared", at="c.0", vector=8, pad=8)
//       .cache_read("X.shared", "fragment", at="c.1")
//       .cache_read("W.shared", "fragment", at="c.1")
//       .pipeline("c.0", stages=3, copy="async")
//       .tensorize("c.2", "mma.m16n8k16")
// digest 313772e9a6cae476
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
// A bit for each of the first `count` iterations of a loop: whether index + iteration * step is outside 0 to extent - 1.
template <int count, int step>
static __device__ __forceinline__ unsigned int out_of_bounds_mask(int index, int extent)
{
    unsigned int mask = 0;
    #pragma unroll
    for (int iteration = 0; iteration < count; ++iteration) {
        const bool outside = index + iteration * step < 0 || index + iteration * step >= extent;
        mask |= static_cast<unsigned int>(outside) << iteration;
    }
    return mask;
}

// Asynchronous copies to shared memory; those with a condition write zeros where it is false.
static __device__ __forceinline__ void copy_async_16(unsigned int to, const void* from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" : : "r"(to), "l"(from));
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

// Loads matrices of 8 rows of 16 bytes from shared memory into the registers of a warp; each lane gives the address of a row.
static __device__ __forceinline__ void load_matrices_4(unsigned int& r0, unsigned int& r1, unsigned int& r2, unsigned int& r3, unsigned int row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3) : "r"(row) : "memory");
}

// mma.m16n8k16 of float16: c += a * b for fragments in the registers of a warp; each lane has four of the sums.
static __device__ __forceinline__ void mma_m16n8k16_float16(float& c0, float& c1, float& c2, float& c3, const unsigned int (&a)[4], const unsigned int (&b)[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c0), "+f"(c1), "+f"(c2), "+f"(c3)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// grid 1 x 7 x 1, block 32 x 4 x 1
extern "C" __global__ void __launch_bounds__(128)
ekc_conv2d(const half_t* __restrict__ X, const half_t* __restrict__ W, half_t* __restrict__ Y)
{
    __shared__ __align__(16) half_t X_shared[3][64][40];
    __shared__ __align__(16) half_t W_shared[3][64][40];
    alignas(16) float Y_acc[4][4][2];
    const int n_p_q_0 = blockIdx.y;
    const int o_0 = blockIdx.x;
    const int n_p_q_1 = threadIdx.y / 2;
    const int o_1 = threadIdx.y % 2;
    const int n_p_q_4 = threadIdx.x / 4;
    const int o_3 = threadIdx.x % 4;
    const int thread = threadIdx.y * 32 + threadIdx.x;
    const int matrix_row = threadIdx.x % 8;
    const int matrix_low = threadIdx.x / 8 % 2;
    const int matrix_high = threadIdx.x / 16;
    // parts of the source offsets of X_shared that no loop changes
    int X_shared_offset_base[2];
    unsigned int X_shared_outside[2];
    #pragma unroll
    for (int round = 0; round < 2; ++round) {
        const int n_p_q = thread * 8 / 32 + round * 32;
        const int c = thread * 8 % 32;
        X_shared_offset_base[round] = keep_in_register((((((n_p_q_0 * 64 + n_p_q) / 14)) / 14)) * 6272 + (((((n_p_q_0 * 64 + n_p_q) / 14)) % 14) - 1) * 448 + (((n_p_q_0 * 64 + n_p_q) % 14) - 1) * 32 + c);
        X_shared_outside[round] = keep_in_register(((((n_p_q_0 * 64 + n_p_q) / 14)) / 14) < 2 ? out_of_bounds_mask<3, 1>(((((n_p_q_0 * 64 + n_p_q) / 14)) % 14) - 1, 14) | out_of_bounds_mask<3, 1>(((n_p_q_0 * 64 + n_p_q) % 14) - 1, 14) << 3 : ~0u);
    }
    // parts of the source offsets of W_shared that no loop changes
    int W_shared_offset_base;
    {
        constexpr int round = 0;
        const int o = thread * 8 / 32 + round * 32;
        const int c = thread * 8 % 32;
        W_shared_offset_base = keep_in_register((o_0 * 64 + o) * 288 + c);
    }
    #pragma unroll
    for (int d0 = 0; d0 < 4; ++d0) {
        #pragma unroll
        for (int o_2 = 0; o_2 < 4; ++o_2) {
            #pragma unroll
            for (int o_4 = 0; o_4 < 2; ++o_4) {
                Y_acc[d0][o_2][o_4] = 0.0f;
            }
        }
    }
    #pragma unroll 1
    for (int r = 0; r < 3; ++r) {
        #pragma unroll 1
        for (int s = 0; s < 3; ++s) {
            // source offsets (tile 0) and shared addresses (copy 0) of the rounds of X_shared
            const half_t* X_shared_pointer = X;
            unsigned int X_shared_address;
            int X_shared_offset[2];
            bool X_shared_inside[2];
            {
                constexpr int round = 0;
                const int n_p_q = thread * 8 / 32 + round * 32;
                const int c = thread * 8 % 32;
                X_shared_address = keep_in_register(shared_address(&X_shared[0][n_p_q][c]));
            }
            #pragma unroll
            for (int round = 0; round < 2; ++round) {
                X_shared_offset[round] = X_shared_offset_base[round] + r * 448 + s * 32;
                X_shared_inside[round] = (X_shared_outside[round] & (1u << r | 1u << (s + 3))) == 0;
            }
            // source offsets (tile 0) and shared addresses (copy 0) of the rounds of W_shared
            const half_t* W_shared_pointer = W;
            int W_shared_offset;
            unsigned int W_shared_address;
            {
                constexpr int round = 0;
                const int o = thread * 8 / 32 + round * 32;
                const int c = thread * 8 % 32;
                W_shared_offset = W_shared_offset_base + r * 96 + s * 32;
                W_shared_address = keep_in_register(shared_address(&W_shared[0][o][c]));
            }
            // addresses of the rows of X_fragment, copy 0
            unsigned int X_fragment_address;
            X_fragment_address = keep_in_register(shared_address(&X_shared[0][n_p_q_1 * 32 + matrix_low * 8 + matrix_row][matrix_high * 8]));
            // addresses of the rows of W_fragment, copy 0
            unsigned int W_fragment_address;
            W_fragment_address = keep_in_register(shared_address(&W_shared[0][o_1 * 32 + matrix_high * 8 + matrix_row][matrix_low * 8]));
            // 3 copies of each tile: the next 2 are in flight while one is used
            #pragma unroll 1
            for (int c_0 = 0; c_0 < 2; ++c_0) {
                const int c_0_copy = c_0;
                if (c_0 < 1) {
                    // copy X[((((n_p_q) / 14)) / 14), r + ((((n_p_q) / 14)) % 14) - 1, s + ((n_p_q) % 14) - 1, c_0 * 32 : 32], n_p_q = n_p_q_0 * 64 : 64 -> X_shared
                    #pragma unroll
                    for (int round = 0; round < 2; ++round) {
                        copy_async_16_or_zeros(X_shared_address + round * 2560 + c_0_copy * 5120, &X_shared_pointer[X_shared_offset[round]], X_shared_inside[round]);
                    }
                    // copy W[o_0 * 64 : 64, r, s, c_0 * 32 : 32] -> W_shared
                    #pragma unroll
                    for (int round = 0; round < 2; ++round) {
                        copy_async_16(W_shared_address + round * 2560 + c_0_copy * 5120, &W_shared_pointer[W_shared_offset + round * 9216]);
                    }
                }
                X_shared_pointer += 32;
                W_shared_pointer += 32;
                commit_copies();
            }
            int c_0_slot = 0, c_0_free = 2;
            #pragma unroll 1
            for (int c_0_now = 0; c_0_now < 1; ++c_0_now) {
                wait_copies<1>();
                __syncthreads();
                if (c_0_now + 2 < 1) {
                    const int c_0_copy = c_0_free;
                    // copy X[((((n_p_q) / 14)) / 14), r + ((((n_p_q) / 14)) % 14) - 1, s + ((n_p_q) % 14) - 1, c_0 * 32 : 32], n_p_q = n_p_q_0 * 64 : 64 -> X_shared
                    #pragma unroll
                    for (int round = 0; round < 2; ++round) {
                        copy_async_16_or_zeros(X_shared_address + round * 2560 + c_0_copy * 5120, &X_shared_pointer[X_shared_offset[round]], X_shared_inside[round]);
                    }
                    // copy W[o_0 * 64 : 64, r, s, c_0 * 32 : 32] -> W_shared
                    #pragma unroll
                    for (int round = 0; round < 2; ++round) {
                        copy_async_16(W_shared_address + round * 2560 + c_0_copy * 5120, &W_shared_pointer[W_shared_offset + round * 9216]);
                    }
                }
                X_shared_pointer += 32;
                W_shared_pointer += 32;
                commit_copies();
                {
                    const int c_0_copy = c_0_slot;
                    #pragma unroll 1
                    for (int c_1 = 0; c_1 < 2; ++c_1) {
                        // fragments X_shared -> X_fragment
                        unsigned int X_fragment[2][4];
                        #pragma unroll
                        for (int n_p_q_2 = 0; n_p_q_2 < 2; ++n_p_q_2) {
                            load_matrices_4(X_fragment[n_p_q_2][0], X_fragment[n_p_q_2][1], X_fragment[n_p_q_2][2], X_fragment[n_p_q_2][3], X_fragment_address + c_0_copy * 5120 + n_p_q_2 * 1280 + c_1 * 32);
                        }
                        // fragments W_shared -> W_fragment
                        unsigned int W_fragment[4][2];
                        #pragma unroll
                        for (int o_2 = 0; o_2 < 4; o_2 += 2) {
                            load_matrices_4(W_fragment[o_2][0], W_fragment[o_2][1], W_fragment[o_2 + 1][0], W_fragment[o_2 + 1][1], W_fragment_address + c_0_copy * 5120 + o_2 * 640 + c_1 * 32);
                        }
                        #pragma unroll
                        for (int n_p_q_2 = 0; n_p_q_2 < 2; ++n_p_q_2) {
                            #pragma unroll
                            for (int o_2 = 0; o_2 < 4; ++o_2) {
                                mma_m16n8k16_float16(Y_acc[n_p_q_2 * 2][o_2][0], Y_acc[n_p_q_2 * 2][o_2][1], Y_acc[n_p_q_2 * 2 + 1][o_2][0], Y_acc[n_p_q_2 * 2 + 1][o_2][1], X_fragment[n_p_q_2], W_fragment[o_2]);
                            }
                        }
                    }
                }
                c_0_free = c_0_slot;
                c_0_slot = c_0_slot == 2 ? 0 : c_0_slot + 1;
            }
            __syncthreads();
        }
    }
    // write Y_acc -> Y
    #pragma unroll
    for (int d0 = 0; d0 < 4; ++d0) {
        #pragma unroll
        for (int o_2 = 0; o_2 < 4; ++o_2) {
            if (((((n_p_q_0 * 64 + n_p_q_1 * 32 + d0 * 8 + n_p_q_4) / 14)) / 14) < 2) {
                {
                    alignas(4) const half_t packed[2] = { to_half(Y_acc[d0][o_2][0]), to_half(Y_acc[d0][o_2][1]) };
                    *reinterpret_cast<unsigned int*>(&Y[(((((n_p_q_0 * 64 + n_p_q_1 * 32 + d0 * 8 + n_p_q_4) / 14)) / 14)) * 12544 + (((((n_p_q_0 * 64 + n_p_q_1 * 32 + d0 * 8 + n_p_q_4) / 14)) % 14)) * 896 + (((n_p_q_0 * 64 + n_p_q_1 * 32 + d0 * 8 + n_p_q_4) % 14)) * 64 + o_0 * 64 + o_1 * 32 + o_3 * 2 + o_2 * 8]) = *reinterpret_cast<const unsigned int*>(&packed[0]);
                }
            }
        }
    }
}
