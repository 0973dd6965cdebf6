// CUDA's names on the CPU: the threads of a block are fibres that really wait for each other, so that printed kernels
// run without a GPU. Blocks run one after the other. Between two barriers threads run in one order, then in the other.

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <ucontext.h>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __restrict__
#define __shared__ static

struct Three { unsigned x, y, z; };
static Three blockIdx, blockDim, gridDim, threadIdx;

namespace host {

constexpr unsigned WARP = 32;
constexpr size_t STACK = 32 << 10;
enum State { READY, AT_BLOCK, AT_WARP, ENDED };

struct Fibre {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  State state;
};

static std::vector<Fibre> fibres;
static ucontext_t scheduler;
static unsigned present;
static void (*body)(const void*);
static const void* given;
static std::vector<uint64_t> exchanged;
static const char* failure;

static void enter() {
  body(given);
  fibres[present].state = ENDED;
  swapcontext(&fibres[present].context, &scheduler);
}

static void wait(State state) {
  const unsigned own = present;
  fibres[own].state = state;
  swapcontext(&fibres[own].context, &scheduler);
}

static void resume(unsigned number) {
  present = number;
  threadIdx = {number, 0, 0};
  swapcontext(&scheduler, &fibres[number].context);
}

// Threads from `begin` on wait for each other: whether all of them do.
static bool released(unsigned begin, unsigned end, State state) {
  for (unsigned k = begin; k < end; ++k) if (fibres[k].state != state) return false;
  for (unsigned k = begin; k < end; ++k) fibres[k].state = READY;
  return true;
}

static void run_block() {
  const unsigned count = blockDim.x;
  if (fibres.size() < count) fibres.resize(count), exchanged.resize(count);
  for (unsigned k = 0; k < count; ++k) {
    Fibre& fibre = fibres[k];
    if (!fibre.stack) fibre.stack.reset(new char[STACK]);
    getcontext(&fibre.context);
    fibre.context.uc_stack.ss_sp = fibre.stack.get();
    fibre.context.uc_stack.ss_size = STACK;
    fibre.context.uc_link = nullptr;
    fibre.state = READY;
    makecontext(&fibre.context, enter, 0);
  }
  for (unsigned round = 0;; ++round) {
    bool ran = false;
    for (unsigned k = 0; k < count; ++k) {
      const unsigned number = round % 2 ? count - 1 - k : k;
      if (fibres[number].state == READY) resume(number), ran = true;
    }
    for (unsigned k = 0; k < count; k += WARP) ran |= released(k, k + WARP < count ? k + WARP : count, AT_WARP);
    ran |= released(0, count, AT_BLOCK);
    if (!ran) break;
  }
  for (unsigned k = 0; k < count; ++k)
    if (fibres[k].state != ENDED) failure = "threads wait at a barrier that others never reach";
}

// Runs a kernel; those whose threads never wait need no fibres. Returns what went wrong, if anything did.
static const char* run(const unsigned* sizes, bool waits, void (*function)(const void*), const void* arguments) {
  gridDim = {sizes[0], sizes[1], 1}, blockDim = {sizes[2], 1, 1};
  body = function, given = arguments, failure = nullptr;
  for (unsigned y = 0; y < sizes[1]; ++y)
    for (unsigned x = 0; x < sizes[0]; ++x) {
      blockIdx = {x, y, 0};
      if (waits) run_block();
      else for (unsigned k = 0; k < sizes[2]; ++k) threadIdx = {k, 0, 0}, function(arguments);
    }
  return failure;
}

template <class T> static T exchange(T value, unsigned from) {
  const unsigned own = present;
  std::memcpy(&exchanged[own], &value, sizeof value);
  wait(AT_WARP);
  std::memcpy(&value, &exchanged[own / WARP * WARP + from % WARP], sizeof value);
  wait(AT_WARP);
  return value;
}

template <class To, class From> static To bits(From x) {
  To y;
  static_assert(sizeof x == sizeof y, "");
  std::memcpy(&y, &x, sizeof y);
  return y;
}

}  // namespace host

static inline void __syncthreads() { host::wait(host::AT_BLOCK); }
static inline void __syncwarp(unsigned = ~0u) { host::wait(host::AT_WARP); }
template <class T> static T __shfl_xor_sync(unsigned, T x, int mask) {
  return host::exchange(x, host::present % host::WARP ^ mask);
}
template <class T> static T __shfl_sync(unsigned, T x, int from) { return host::exchange(x, from); }
template <class T> static T __shfl_up_sync(unsigned, T x, unsigned by) {
  const unsigned lane = host::present % host::WARP;
  return host::exchange(x, lane < by ? lane : lane - by);
}
template <class T> static T __shfl_down_sync(unsigned, T x, unsigned by) {
  const unsigned lane = host::present % host::WARP;
  return host::exchange(x, lane + by < host::WARP ? lane + by : lane);
}
template <class T> static T atomicAdd(T* place, T x) { T before = *place; *place += x; return before; }
template <class T> static T atomicMax(T* place, T x) { T before = *place; if (x > before) *place = x; return before; }
template <class T> static T atomicMin(T* place, T x) { T before = *place; if (x < before) *place = x; return before; }

static inline int __float_as_int(float x) { return host::bits<int>(x); }
static inline float __int_as_float(int x) { return host::bits<float>(x); }
static inline long long __double_as_longlong(double x) { return host::bits<long long>(x); }
static inline double __longlong_as_double(long long x) { return host::bits<double>(x); }
static inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
  return (unsigned __int128)x * y >> 64;
}

struct __half { uint16_t bits; };
struct __nv_bfloat16 { uint16_t bits; };

static inline __half __ushort_as_half(unsigned short x) { return {x}; }
static inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short x) { return {x}; }
static inline float __bfloat162float(__nv_bfloat16 x) { return host::bits<float>((uint32_t)x.bits << 16); }
static inline float __half2float(__half x) {
  const int exponent = x.bits >> 10 & 31, fraction = x.bits & 1023;
  float size = exponent == 31 ? (fraction ? NAN : INFINITY) : std::ldexp((float)(exponent ? fraction + 1024 : fraction), (exponent ? exponent : 1) - 25);
  return x.bits & 0x8000 ? -size : size;
}
static inline __half __float2half_rn(float x) {
  const uint16_t sign = host::bits<uint32_t>(x) >> 16 & 0x8000;
  const float size = std::fabs(x);
  if (std::isnan(x)) return {(uint16_t)(sign | 0x7e00)};
  if (size >= 65520.0f) return {(uint16_t)(sign | 0x7c00)};
  int exponent;
  std::frexp(size, &exponent);
  if (exponent < -13) exponent = -13;  // subnormal
  const int whole = (int)std::nearbyint(std::ldexp(size, 11 - exponent));  // to even, as the processor rounds
  return {(uint16_t)(sign | (whole >= 1024 ? ((exponent + 13) << 10) + whole : whole))};
}
static inline __nv_bfloat16 __float2bfloat16_rn(float x) {
  const uint32_t bits = host::bits<uint32_t>(x);
  if (std::isnan(x)) return {(uint16_t)(bits >> 16 & 0x8000 | 0x7fff)};
  return {(uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}
