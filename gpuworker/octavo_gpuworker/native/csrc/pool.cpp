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

constexpr uint64_t SLOWER = 3;  // a small core or a busy sibling takes longer than a large core, but not so much
constexpr uint64_t AT_WORK = 1, HELPED = 2;  // the low bits of Seat::unit
constexpr timespec BETWEEN_LOOKS{0, 100'000};  // of a thread that sleeps, for somebody to help
constexpr timespec GIVEN_AWAY{0, 200'000};     // how long a helper stays away, unless the step ends

inline void pause() { __builtin_ia32_pause(); }

inline uint64_t cycles() { return __builtin_ia32_rdtsc(); }

inline int own_id() { return static_cast<int>(syscall(SYS_gettid)); }

// The count of a phase's done units, as the futex of those that wait for its end.
inline uint32_t *count_of(std::atomic<uint64_t> &done) {
    static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ && sizeof done == sizeof(uint64_t));
    return reinterpret_cast<uint32_t *>(&done);
}

}  // namespace

ThreadPool::ThreadPool(int threads, int max_phases) : phases_(max_phases), seats_(threads) {
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
    seats_[0].id.store(own_id(), std::memory_order_relaxed);
    take_part(job, generation, 0);
}

void ThreadPool::take_part(Job &job, uint64_t generation, int thread) {
    const int count = count_.load(std::memory_order_relaxed);
    Seat &seat = seats_[thread];
    for (int index = 0; index < count; ++index) {
        Phase &phase = phases_[index];
        const uint64_t tag = generation << 40 | static_cast<uint64_t>(index) << 20 | AT_WORK;
        uint64_t word = phase.claim.load(std::memory_order_acquire);
        uint64_t units = 0, began = cycles();
        seat.longest = 0;
        while (true) {
            if (word >> 40 != generation) return;  // this thread slept through the step
            units = word >> 20 & MAX_UNITS;
            if ((word & MAX_UNITS) == units) break;
            if (!phase.claim.compare_exchange_weak(word, word + 1, std::memory_order_acq_rel)) continue;
            seat.since.store(began, std::memory_order_relaxed);
            seat.unit.store(tag, std::memory_order_release);
            job.work(index, static_cast<int>(word & MAX_UNITS), thread);
            const uint64_t helped = seat.unit.exchange(0);
            if (helped & HELPED) part_from(seats_[helped >> 2]);
            const uint64_t before = phase.done.fetch_add(1);
            if ((before & MAX_UNITS) + 1 == units && phase.waiting.load() > 0)
                syscall(SYS_futex, count_of(phase.done), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
            const uint64_t now = cycles();
            if (now - began > seat.longest) seat.longest = now - began;
            began = now;
            word = phase.claim.load(std::memory_order_acquire);
        }
        if (!wait_for(phase, tag, generation, units, thread)) return;
    }
}

// False: the phase is of a later generation by now. A thread that holds the last unit may have been put aside for another
// process; who waits for it sleeps then, and takes it to its own processor.
bool ThreadPool::wait_for(Phase &phase, uint64_t tag, uint64_t generation, uint64_t units, int thread) {
    bool helped = false, of_this_step = true;
    for (int spins = 0;; ++spins) {
        const uint64_t done = phase.done.load(std::memory_order_acquire);
        of_this_step = done >> 40 == generation;
        if (!of_this_step || (done & MAX_UNITS) == units) break;
        if (spins < SPINS_IN_STEP) {
            pause();
            continue;
        }
        if (!helped && lend(tag, thread)) {
            helped = true;
            Phase &last = phases_[count_.load(std::memory_order_relaxed) - 1];
            sleep_on(last, last.done.load(), &GIVEN_AWAY);
            continue;
        }
        // A later generation may have the same count and put this thread to sleep: the end of its phase wakes it all the same.
        sleep_on(phase, done, helped ? nullptr : &BETWEEN_LOOKS);
    }
    if (helped) sched_setaffinity(0, sizeof(cpu_set_t), &seats_[thread].allowed);
    return of_this_step;
}

void ThreadPool::sleep_on(Phase &phase, uint64_t done, const timespec *limit) {
    phase.waiting.fetch_add(1);
    syscall(SYS_futex, count_of(phase.done), FUTEX_WAIT_PRIVATE, static_cast<uint32_t>(done), limit, nullptr, 0);
    phase.waiting.fetch_sub(1);
}

// Takes a thread that was put aside within a unit of this phase to this processor, which the caller leaves right after. The
// kernel would not: a thread that ran within the last 0.5 ms counts as hot and stays in the queue of the processor that it was
// put aside on, behind whoever took it (task_hot, sched_migration_cost). Put aside is whose unit has taken SLOWER times as long as the
// caller's longest; one that runs is moved for nothing. False: there is none, or not yet.
// The other processor is left to whoever took it for a while: messages pass through several threads of several processes, and one
// of them that waits when a compute thread comes back waits for the kernel's next tick, up to 4 ms.
bool ThreadPool::lend(uint64_t tag, int thread) {
    Seat &own = seats_[thread];
    const int processor = own.longest ? sched_getcpu() : -1;
    if (processor < 0 || processor >= CPU_SETSIZE || refused_.load() || lending_.exchange(true)) return false;
    bool taken = false;
    if (!sched_getaffinity(0, sizeof own.allowed, &own.allowed))
        for (Seat &other : seats_) {
            taken = cycles() - other.since.load(std::memory_order_relaxed) >= SLOWER * own.longest &&
                    take_here(other, tag, thread, processor);
            if (taken) break;
        }
    lending_.store(false);
    return taken;
}

// False: the other one does not hold a unit of this phase any more, or somebody else helps it.
bool ThreadPool::take_here(Seat &other, uint64_t tag, int thread, int processor) {
    if (!other.unit.compare_exchange_strong(tag, static_cast<uint64_t>(thread) << 2 | HELPED)) return false;
    const int id = other.id.load(std::memory_order_relaxed);
    cpu_set_t allowed, here;
    CPU_ZERO(&here);
    CPU_SET(processor, &here);
    if (!sched_getaffinity(id, sizeof allowed, &allowed) && !sched_setaffinity(id, sizeof here, &here)) {
        sched_setaffinity(id, sizeof allowed, &allowed);  // a queued thread moves at once, and stays
        lent_.fetch_add(1, std::memory_order_relaxed);
    } else {
        refused_.store(true, std::memory_order_relaxed);
    }
    return true;
}

// Who was helped lets the helper wake on any processor but this one: the kernel looks for an idle one only while few are busy,
// and would leave both here to take turns. The helper sets that right when it goes on (wait_for).
void ThreadPool::part_from(const Seat &helper) {
    cpu_set_t others = helper.allowed;
    const int processor = sched_getcpu();
    if (processor >= 0 && processor < CPU_SETSIZE) CPU_CLR(processor, &others);
    if (CPU_COUNT(&others)) sched_setaffinity(helper.id.load(std::memory_order_relaxed), sizeof others, &others);
}

void ThreadPool::serve(int thread) {
    seats_[thread].id.store(own_id(), std::memory_order_relaxed);
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
