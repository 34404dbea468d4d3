// matmul(A[128, 128] float16, B[128, 128] float16)
//   C[i, j] = sum[k < 128] A[i, k] * B[k, j]
// 
// Written by ekc VERSION from the schedule
//   ekc.Schedule(op)
//       .split("i", (2, 2, 2, 8))
//       .split("j", (2, 4, 4, 2))
//       .split("k", (2, 16))
//       .reorder("i.0", "j.0", "i.1", "j.1", "i.4", "j.3", "k.0", "k.1", "i.2", "j.2", "i.3", "j.4", "k.2")
//       .bind("i.0", "block.y")
//       .bind("j.0", "block.x")
//       .bind("i.1", "thread.y")
//       .bind("j.1", "thread.y")
//       .bind("i.4", "thread.x")
//       .bind("j.3", "thread.x")
//       .cache_write("C", vector=2)
//       .cache_read("A", "shared", at="k.0", vector=8, swizzle=8)
//       .cache_read("B", "shared", at="k.0", vector=8, swizzle=8)
//       .cache_read("A.shared", "fragment", at="k.1")
//       .cache_read("B.shared", "fragment", at="k.1")
//       .pipeline("k.0")
//       .unroll("k.1", factor=2)
//       .tensorize("k.2", "mma.m16n8k16")
// digest 097e21377fc5fc26
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
template <typename type>
static __device__ __forceinline__ type& shared_element(unsigned int address)
{
    return *static_cast<type*>(__cvta_shared_to_generic(address));
}
// Keeps a number in a register; otherwise the compiler computes it again in every iteration.
static __device__ __forceinline__ unsigned int keep_in_register(unsigned int number)
{
    asm volatile("" : "+r"(number));
    return number;
}

// Loads matrices of 8 rows of 16 bytes from shared memory into the registers of a warp; each lane gives the address of a row.
static __device__ __forceinline__ void load_matrices_4(unsigned int& r0, unsigned int& r1, unsigned int& r2, unsigned int& r3, unsigned int row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3) : "r"(row) : "memory");
}
static __device__ __forceinline__ void load_matrices_4_transposed(unsigned int& r0, unsigned int& r1, unsigned int& r2, unsigned int& r3, unsigned int row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3) : "r"(row) : "memory");
}

// mma.m16n8k16 of float16: c += a * b for fragments in the registers of a warp; each lane has four of the sums.
static __device__ __forceinline__ void mma_m16n8k16_float16(float& c0, float& c1, float& c2, float& c3, const unsigned int (&a)[4], const unsigned int (&b)[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c0), "+f"(c1), "+f"(c2), "+f"(c3)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Index of an element in a swizzled tile: chunks of `size` elements change places by the number of their line.
template <unsigned int chunks, unsigned int size>
static __device__ __forceinline__ unsigned int swizzle_index(unsigned int element)
{
    return element ^ (element / (8 * size) % chunks * size);
}

// grid 2 x 2 x 1, block 32 x 4 x 1
extern "C" __global__ void __launch_bounds__(128)
ekc_matmul(const half_t* __restrict__ A, const half_t* __restrict__ B, half_t* __restrict__ C)
{
    __shared__ __align__(16) half_t A_shared[2][2048];
    __shared__ __align__(16) half_t B_shared[2][2048];
    alignas(16) float C_acc[4][4][2];
    const int i_0 = blockIdx.y;
    const int j_0 = blockIdx.x;
    const int i_1 = threadIdx.y / 2;
    const int j_1 = threadIdx.y % 2;
    const int i_4 = threadIdx.x / 4;
    const int j_3 = threadIdx.x % 4;
    const int thread = threadIdx.y * 32 + threadIdx.x;
    const int matrix_row = threadIdx.x % 8;
    const int matrix_low = threadIdx.x / 8 % 2;
    const int matrix_high = threadIdx.x / 16;
    #pragma unroll
    for (int d0 = 0; d0 < 4; ++d0) {
        #pragma unroll
        for (int j_2 = 0; j_2 < 4; ++j_2) {
            #pragma unroll
            for (int j_4 = 0; j_4 < 2; ++j_4) {
                C_acc[d0][j_2][j_4] = 0.0f;
            }
        }
    }
    // source offsets (tile 0) and shared addresses (copy 0) of the rounds of A_shared
    const half_t* A_shared_pointer = A;
    int A_shared_offset;
    unsigned int A_shared_address;
    {
        constexpr int round = 0;
        const int i = thread * 8 / 32 + round * 32;
        const int k = thread * 8 % 32;
        A_shared_offset = (i_0 * 64 + i) * 128 + k;
        A_shared_address = keep_in_register(shared_address(&A_shared[0][swizzle_index<8, 8>(i * 32 + k)]));
    }
    // source offsets (tile 0) and shared addresses (copy 0) of the rounds of B_shared
    const half_t* B_shared_pointer = B;
    int B_shared_offset;
    unsigned int B_shared_address;
    {
        constexpr int round = 0;
        const int k = thread * 8 / 64 + round * 16;
        const int j = thread * 8 % 64;
        B_shared_offset = k * 128 + j_0 * 64 + j;
        B_shared_address = keep_in_register(shared_address(&B_shared[0][swizzle_index<8, 8>(k * 64 + j)]));
    }
    // addresses of the rows of A_fragment, copy 0
    unsigned int A_fragment_address[2];
    #pragma unroll
    for (int k_1 = 0; k_1 < 2; ++k_1) {
        A_fragment_address[k_1] = keep_in_register(shared_address(&A_shared[0][swizzle_index<8, 8>(i_1 * 1024 + matrix_low * 256 + matrix_row * 32 + k_1 * 16 + matrix_high * 8)]));
    }
    // addresses of the rows of B_fragment, copy 0
    unsigned int B_fragment_address[4];
    #pragma unroll
    for (int j_2 = 0; j_2 < 4; j_2 += 2) {
        B_fragment_address[j_2] = keep_in_register(shared_address(&B_shared[0][swizzle_index<8, 8>(matrix_low * 512 + matrix_row * 64 + j_1 * 32 + j_2 * 8 + matrix_high * 8)]));
    }
    alignas(16) half_t A_shared_next[16];
    alignas(16) half_t B_shared_next[16];
    {
        constexpr int k_0 = 0;
        // fetch A[i_0 * 64 : 64, k_0 * 32 : 32]
        #pragma unroll
        for (int round = 0; round < 2; ++round) {
            *reinterpret_cast<uint4*>(&A_shared_next[round * 8]) = *reinterpret_cast<const uint4*>(&A_shared_pointer[A_shared_offset + round * 4096]);
        }
        // fetch B[k_0 * 32 : 32, j_0 * 64 : 64]
        #pragma unroll
        for (int round = 0; round < 2; ++round) {
            *reinterpret_cast<uint4*>(&B_shared_next[round * 8]) = *reinterpret_cast<const uint4*>(&B_shared_pointer[B_shared_offset + round * 2048]);
        }
        A_shared_pointer += 32;
        B_shared_pointer += 4096;
        // store it in A_shared
        #pragma unroll
        for (int round = 0; round < 2; ++round) {
            *reinterpret_cast<uint4*>(&shared_element<half_t>(A_shared_address + round * 2048 + (k_0 % 2) * 4096)) = *reinterpret_cast<const uint4*>(&A_shared_next[round * 8]);
        }
        // store it in B_shared
        #pragma unroll
        for (int round = 0; round < 2; ++round) {
            *reinterpret_cast<uint4*>(&shared_element<half_t>(B_shared_address + round * 2048 + (k_0 % 2) * 4096)) = *reinterpret_cast<const uint4*>(&B_shared_next[round * 8]);
        }
    }
    __syncthreads();
    #pragma unroll 1
    for (int k_0_now = 0; k_0_now < 4; ++k_0_now) {
        if (k_0_now + 1 < 4) {
            // fetch A[i_0 * 64 : 64, k_0 * 32 : 32]
            #pragma unroll
            for (int round = 0; round < 2; ++round) {
                *reinterpret_cast<uint4*>(&A_shared_next[round * 8]) = *reinterpret_cast<const uint4*>(&A_shared_pointer[A_shared_offset + round * 4096]);
            }
            // fetch B[k_0 * 32 : 32, j_0 * 64 : 64]
            #pragma unroll
            for (int round = 0; round < 2; ++round) {
                *reinterpret_cast<uint4*>(&B_shared_next[round * 8]) = *reinterpret_cast<const uint4*>(&B_shared_pointer[B_shared_offset + round * 2048]);
            }
        }
        A_shared_pointer += 32;
        B_shared_pointer += 4096;
        {
            const int k_0 = k_0_now;
            #pragma unroll
            for (int k_1 = 0; k_1 < 2; ++k_1) {
                // fragments A_shared -> A_fragment
                unsigned int A_fragment[2][4];
                #pragma unroll
                for (int i_2 = 0; i_2 < 2; ++i_2) {
                    load_matrices_4(A_fragment[i_2][0], A_fragment[i_2][1], A_fragment[i_2][2], A_fragment[i_2][3], A_fragment_address[k_1] + (k_0 % 2) * 4096 + i_2 * 1024);
                }
                // fragments B_shared -> B_fragment
                unsigned int B_fragment[4][2];
                #pragma unroll
                for (int j_2 = 0; j_2 < 4; j_2 += 2) {
                    load_matrices_4_transposed(B_fragment[j_2][0], B_fragment[j_2][1], B_fragment[j_2 + 1][0], B_fragment[j_2 + 1][1], B_fragment_address[j_2] + (k_0 % 2) * 4096 + k_1 * 2048);
                }
                #pragma unroll
                for (int i_2 = 0; i_2 < 2; ++i_2) {
                    #pragma unroll
                    for (int j_2 = 0; j_2 < 4; ++j_2) {
                        mma_m16n8k16_float16(C_acc[i_2 * 2][j_2][0], C_acc[i_2 * 2][j_2][1], C_acc[i_2 * 2 + 1][j_2][0], C_acc[i_2 * 2 + 1][j_2][1], A_fragment[i_2], B_fragment[j_2]);
                    }
                }
            }
        }
        if (k_0_now + 1 < 4) {
            const int k_0 = k_0_now + 1;
            // store it in A_shared
            #pragma unroll
            for (int round = 0; round < 2; ++round) {
                *reinterpret_cast<uint4*>(&shared_element<half_t>(A_shared_address + round * 2048 + (k_0 % 2) * 4096)) = *reinterpret_cast<const uint4*>(&A_shared_next[round * 8]);
            }
            // store it in B_shared
            #pragma unroll
            for (int round = 0; round < 2; ++round) {
                *reinterpret_cast<uint4*>(&shared_element<half_t>(B_shared_address + round * 2048 + (k_0 % 2) * 4096)) = *reinterpret_cast<const uint4*>(&B_shared_next[round * 8]);
            }
        }
        __syncthreads();
    }
    // write C_acc -> C
    #pragma unroll
    for (int d0 = 0; d0 < 4; ++d0) {
        #pragma unroll
        for (int j_2 = 0; j_2 < 4; ++j_2) {
            {
                alignas(4) const half_t packed[2] = { to_half(C_acc[d0][j_2][0]), to_half(C_acc[d0][j_2][1]) };
                *reinterpret_cast<unsigned int*>(&C[(i_0 * 64 + i_1 * 32 + i_4 + d0 * 8) * 128 + j_0 * 64 + j_1 * 32 + j_3 * 2 + j_2 * 8]) = *reinterpret_cast<const unsigned int*>(&packed[0]);
            }
        }
    }
}
