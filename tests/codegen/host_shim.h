// Enough of CUDA C++ to run generated kernels on the CPU: one std::thread per CUDA thread of a block, blocks one
// after another. Nothing here knows ekc.
#pragma once
#include <algorithm>
#include <atomic>
#include <barrier>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(n)

struct dim3 {
    unsigned int x = 1, y = 1, z = 1;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned int x, y;
};
struct alignas(16) uint4 {
    unsigned int x, y, z, w;
};
// CUDA's indices are unsigned, but the text assigns them to int at once.
inline dim3 blockIdx;
inline thread_local dim3 threadIdx;

namespace shim {
inline thread_local int thread_number;
inline std::unique_ptr<std::barrier<>> block_barrier;
inline std::vector<std::unique_ptr<std::barrier<>>> warp_barriers;
inline std::vector<unsigned int> exchanged;

// A tensor: NaN until it is filled, and with a margin around it that shows writes and, being huge, reads.
struct Memory {
    static constexpr std::size_t margin = 256;
    static constexpr unsigned char guard = 0xFB;
    std::string path;
    std::size_t bytes;
    unsigned char* whole;

    Memory(const std::string& path_, std::size_t bytes_) : path(path_), bytes(bytes_)
    {
        whole = static_cast<unsigned char*>(std::aligned_alloc(256, (bytes + 2 * margin + 255) / 256 * 256));
        std::memset(whole, guard, bytes + 2 * margin);
        std::memset(data(), 0xFF, bytes);
        std::ifstream file(path, std::ios::binary);
        file.read(reinterpret_cast<char*>(data()), static_cast<std::streamsize>(bytes));
    }
    unsigned char* data() const { return whole + margin; }
    bool keep() const
    {
        std::ofstream(path, std::ios::binary).write(reinterpret_cast<char*>(data()), static_cast<std::streamsize>(bytes));
        bool clean = true;
        for (std::size_t i = 0; i < margin; ++i) clean = clean && whole[i] == guard && data()[bytes + i] == guard;
        return clean;
    }
};

// Asynchronous copies of one thread: the source is read when they are issued, as CUDA may, and lands when its
// group is waited for, as late as CUDA may.
struct Copy {
    void* to;
    unsigned char bytes[16];
    std::size_t size;
};
inline thread_local std::vector<Copy> open_group;
inline thread_local std::deque<std::vector<Copy>> groups;

inline void issue(void* to, const void* from, std::size_t size, std::size_t read)
{
    Copy copy{to, {}, size};
    if (read > 0) std::memcpy(copy.bytes, from, read);
    open_group.push_back(copy);
}
inline void commit()
{
    groups.push_back(std::move(open_group));
    open_group.clear();
}
inline void wait(std::size_t left)
{
    for (; groups.size() > left; groups.pop_front())
        for (const Copy& copy : groups.front()) std::memcpy(copy.to, copy.bytes, copy.size);
}

inline void launch(dim3 grid, dim3 block, const std::function<void()>& kernel)
{
    const unsigned int threads = block.x * block.y * block.z;
    block_barrier = std::make_unique<std::barrier<>>(threads);
    warp_barriers.clear();
    for (unsigned int first = 0; first < threads; first += 32)
        warp_barriers.push_back(std::make_unique<std::barrier<>>(threads - first < 32 ? threads - first : 32));
    exchanged.assign(threads, 0);
    std::barrier<> between(threads);
    std::vector<std::thread> running;
    for (unsigned int t = 0; t < threads; ++t)
        running.emplace_back([&, t] {
            thread_number = static_cast<int>(t);
            threadIdx = {t % block.x, t / block.x % block.y, t / block.x / block.y};
            for (unsigned int b = 0; b < grid.x * grid.y * grid.z; ++b) {
                if (t == 0) blockIdx = {b % grid.x, b / grid.x % grid.y, b / grid.x / grid.y};
                between.arrive_and_wait();
                kernel();
                groups.clear();
                between.arrive_and_wait();
            }
        });
    for (std::thread& thread : running) thread.join();
}
}  // namespace shim

inline void __syncthreads() { shim::block_barrier->arrive_and_wait(); }

template <typename T>
T __shfl_xor_sync(unsigned int, T value, int mask)
{
    static_assert(sizeof(T) == 4);
    std::barrier<>& warp = *shim::warp_barriers[static_cast<std::size_t>(shim::thread_number / 32)];
    shim::exchanged[static_cast<std::size_t>(shim::thread_number)] = std::bit_cast<unsigned int>(value);
    warp.arrive_and_wait();
    const T other = std::bit_cast<T>(shim::exchanged[static_cast<std::size_t>(shim::thread_number ^ mask)]);
    warp.arrive_and_wait();
    return other;
}

template <typename T>
T atomicAdd(T* at, T value)
{
    return std::atomic_ref<T>(*at).fetch_add(value);
}

inline float __int_as_float(unsigned int bits) { return std::bit_cast<float>(bits); }
inline float __uint_as_float(unsigned int bits) { return std::bit_cast<float>(bits); }
inline unsigned int __float_as_uint(float value) { return std::bit_cast<unsigned int>(value); }
using std::max;
using std::min;
