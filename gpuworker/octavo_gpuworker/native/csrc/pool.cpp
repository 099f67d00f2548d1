#include "pool.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <stdexcept>
#include <string>
#include <system_error>

namespace octavo {
namespace {

constexpr uint64_t GENERATION_MASK = (1u << 24) - 1;
constexpr int SPINS_IN_STEP = 2000;    // about 20 us: units end together, unless a thread has lost its processor within one
constexpr int SPINS_AFTER_STEP = 2000;  // about 20 us: the next step of a bare engine comes sooner, a served one later

inline void pause() { __builtin_ia32_pause(); }

// The count of a phase's done units, as the futex of those that wait for its end.
inline uint32_t *count_of(std::atomic<uint64_t> &done) {
    static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ && sizeof done == sizeof(uint64_t));
    return reinterpret_cast<uint32_t *>(&done);
}

}  // namespace

ThreadPool::ThreadPool(int threads, int max_phases) : phases_(max_phases) {
    try {
        for (int thread = 1; thread < threads; ++thread) workers_.emplace_back([this, thread] { serve(thread); });
    } catch (const std::system_error &failure) {
        const auto had = std::to_string(workers_.size() + 1);
        stop();  // a thread that is destroyed unjoined ends the process
        throw std::runtime_error("threads is " + std::to_string(threads) + ", but the system gives " + had + ": " + failure.what());
    }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
    stop_.store(true);
    generation_.fetch_add(1);
    syscall(SYS_futex, &generation_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
    for (auto &worker : workers_) worker.join();
    workers_.clear();
}

void ThreadPool::run(Job &job) {
    const uint32_t next = generation_.load(std::memory_order_relaxed) + 1;
    const uint64_t generation = next & GENERATION_MASK;
    const int count = job.phases();
    for (int phase = 0; phase < count; ++phase) {
        phases_[phase].claim.store(generation << 40 | static_cast<uint64_t>(job.units(phase)) << 20,
                                   std::memory_order_relaxed);
        phases_[phase].done.store(generation << 40, std::memory_order_relaxed);
    }
    count_.store(count, std::memory_order_relaxed);
    job_.store(&job, std::memory_order_relaxed);
    generation_.store(next);
    if (parked_.load() > 0) syscall(SYS_futex, &generation_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
    take_part(job, generation, 0);
}

void ThreadPool::take_part(Job &job, uint64_t generation, int thread) {
    const int count = count_.load(std::memory_order_relaxed);
    for (int index = 0; index < count; ++index) {
        Phase &phase = phases_[index];
        uint64_t word = phase.claim.load(std::memory_order_acquire);
        uint64_t units = 0;
        while (true) {
            if (word >> 40 != generation) return;  // this thread slept through the step
            units = word >> 20 & MAX_UNITS;
            if ((word & MAX_UNITS) == units) break;
            if (!phase.claim.compare_exchange_weak(word, word + 1, std::memory_order_acq_rel)) continue;
            job.work(index, static_cast<int>(word & MAX_UNITS), thread);
            const uint64_t before = phase.done.fetch_add(1);
            if ((before & MAX_UNITS) + 1 == units && phase.waiting.load() > 0)
                syscall(SYS_futex, count_of(phase.done), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
            word = phase.claim.load(std::memory_order_acquire);
        }
        if (!wait_for(phase, generation, units)) return;
    }
}

// False: the phase is of a later generation by now. A thread that holds the last unit may have been put aside for another
// process; who waits for it gives its own processor away then, so that the kernel can go on there with what it put aside.
bool ThreadPool::wait_for(Phase &phase, uint64_t generation, uint64_t units) {
    for (int spins = 0;; ++spins) {
        const uint64_t done = phase.done.load(std::memory_order_acquire);
        if (done >> 40 != generation) return false;
        if ((done & MAX_UNITS) == units) return true;
        if (spins < SPINS_IN_STEP) {
            pause();
            continue;
        }
        // A later generation may have the same count and put this thread to sleep: the end of its phase wakes it all the same.
        phase.waiting.fetch_add(1);
        syscall(SYS_futex, count_of(phase.done), FUTEX_WAIT_PRIVATE, static_cast<uint32_t>(done), nullptr, nullptr, 0);
        phase.waiting.fetch_sub(1);
    }
}

void ThreadPool::serve(int thread) {
    uint32_t seen = 0;
    while (true) {
        for (int spins = 0; spins < SPINS_AFTER_STEP && generation_.load(std::memory_order_acquire) == seen; ++spins)
            pause();
        while (generation_.load(std::memory_order_acquire) == seen) {
            parked_.fetch_add(1);
            syscall(SYS_futex, &generation_, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
            parked_.fetch_sub(1);
        }
        seen = generation_.load(std::memory_order_acquire);
        if (stop_.load()) return;
        // The job may be over and gone by now: take_part touches it only after it has claimed a unit of this generation.
        take_part(*job_.load(std::memory_order_relaxed), seen & GENERATION_MASK, thread);
    }
}

}  // namespace octavo
