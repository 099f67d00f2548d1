#include "pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <stdexcept>
#include <string>
#include <system_error>

namespace octavo {
namespace {

constexpr uint64_t GENERATION_MASK = (1u << 24) - 1;
constexpr uint64_t AT_WORK = 1;  // the lowest bit of Seat::unit
constexpr int SPINS_IN_STEP = 2000;       // about 20 us: units end together, unless a thread has lost its processor within one
constexpr int SPINS_AFTER_STEP = 2000;    // about 20 us: the next step of a bare engine comes sooner, a served one later
constexpr int SPINS_BETWEEN_LOOKS = 500;  // about 5 us, then a look whether somebody who is waited for has no processor
constexpr int SPINS_OF_A_LOOK = 200;      // about 2 us, in which the time of a thread that runs goes on
constexpr int SPINS_AFTER_HELP = 20'000;  // about 200 us: who was moved waits behind others for a while, and is not moved to and fro
constexpr int SPINS_BESIDE = 40'000;      // about 400 us beside one that runs: what takes longer is worth a sleep
constexpr int PHASES_BEHIND = 2;          // so far behind is only who does not run: units are short, and taken one by one
constexpr int PHASES_BETWEEN = 8;         // about 400 us of decode, in which who was sent away comes to run
constexpr int NONE_LEFT = -1, TOO_LATE = -2;  // of claim
constexpr int LINES_AT_ONCE = 8;               // between two looks whether the phase has ended
constexpr timespec BETWEEN_LOOKS{0, 100'000};  // of a thread that sleeps, for somebody to help

inline void pause() { __builtin_ia32_pause(); }

// The count of a phase's units that are left, as the futex of those that wait for its end.
inline uint32_t *count_of(std::atomic<uint64_t> &left) {
    static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ && sizeof left == sizeof(uint64_t));
    return reinterpret_cast<uint32_t *>(&left);
}

}  // namespace

ThreadPool::ThreadPool(int threads, int max_phases)
    : phases_(max_phases), spans_(static_cast<size_t>(max_phases) * threads), seats_(threads) {
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

void ThreadPool::run(Job &job, Bell *bell) {
    const uint32_t next = generation_.load(std::memory_order_relaxed) + 1;
    const uint64_t generation = next & GENERATION_MASK;
    const int count = job.phases();
    const int threads = static_cast<int>(seats_.size());
    for (int phase = 0; phase < count; ++phase) {
        const int units = job.units(phase);
        const bool shared = threads == 1 || !job.neighbours(phase);
        for (int thread = 0; thread < threads; ++thread) {
            const int first = shared ? (thread ? units : 0) : share_start(units, thread, threads);
            const int end = shared ? units : share_start(units, thread + 1, threads);
            spans_[static_cast<size_t>(phase) * threads + thread].store(
                generation << 40 | static_cast<uint64_t>(end) << 20 | static_cast<uint64_t>(first), std::memory_order_relaxed);
        }
        phases_[phase].shared.store(shared, std::memory_order_relaxed);
        phases_[phase].left.store(generation << 40 | static_cast<uint64_t>(units), std::memory_order_relaxed);
    }
    count_.store(count, std::memory_order_relaxed);
    job_.store(&job, std::memory_order_relaxed);
    generation_.store(next);
    if (parked_.load() > 0) wake();
    if (bell) bell->ring();
    sit_down(seats_[0]);
    take_part(job, generation, 0);
}

// All that sleep. The kernel puts a woken thread on the processor where it slept unless that one is taken, and on few processors it looks
// for no idle one (SIS_UTIL) but queues it there: one that slept where the caller runs now would begin at the next tick, up to 4 ms
// late. It is told to begin elsewhere, and may go where it likes once it does.
void ThreadPool::wake() {
    const int here = sched_getcpu();
    for (Seat &seat : seats_) seat.woken = begins_elsewhere(seat, here);
    syscall(SYS_futex, &generation_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
    for (Seat &seat : seats_) {
        if (!seat.woken) continue;
        sched_setaffinity(seat.id.load(std::memory_order_relaxed), sizeof seat.allowed, &seat.allowed);
        seat.held.store(false);
    }
}

// True: it is held, and to be allowed again where it might run before.
bool ThreadPool::begins_elsewhere(Seat &other, int here) {
    if (!other.asleep.load() || other.processor.load(std::memory_order_relaxed) != here || here < 0 || here >= CPU_SETSIZE) return false;
    if (refused_.load() || other.held.exchange(true)) return false;
    const bool known = !other.helps.load() && may_run(other, other.allowed);
    cpu_set_t elsewhere = other.allowed;
    CPU_CLR(here, &elsewhere);
    bool told = known && CPU_COUNT(&elsewhere) > 0;
    if (told && sched_setaffinity(other.id.load(std::memory_order_relaxed), sizeof elsewhere, &elsewhere)) {
        refused_.store(true, std::memory_order_relaxed);
        told = false;
    }
    if (!told) other.held.store(false);
    sent_.fetch_add(told, std::memory_order_relaxed);
    return told;
}

void ThreadPool::sit_down(Seat &seat) {
    clockid_t clock;
    if (pthread_getcpuclockid(pthread_self(), &clock)) clock = CLOCK_MONOTONIC;  // which goes on: it is never helped
    seat.clock.store(clock, std::memory_order_relaxed);
    seat.id.store(static_cast<int>(syscall(SYS_gettid)), std::memory_order_relaxed);
}

// A unit of the phase, NONE_LEFT, or TOO_LATE: the step of that generation is over. A unit of one's own share comes in order, one
// of another's, which sets `others`, from its end.
int ThreadPool::claim(int index, uint64_t generation, int thread, bool &others) {
    const int threads = static_cast<int>(seats_.size());
    const bool shared = phases_[index].shared.load(std::memory_order_relaxed);
    for (int i = 0; i < (shared ? 1 : threads); ++i) {
        const int owner = shared ? 0 : (thread + i) % threads;
        std::atomic<uint64_t> &span = spans_[static_cast<size_t>(index) * threads + owner];
        uint64_t word = span.load(std::memory_order_acquire);
        while (true) {
            if (word >> 40 != generation) return TOO_LATE;
            const uint64_t next = word & MAX_UNITS, end = word >> 20 & MAX_UNITS;
            if (next == end) break;
            const bool own = i == 0;
            if (!span.compare_exchange_weak(word, own ? word + 1 : word - (1u << 20), std::memory_order_acq_rel)) continue;
            others = others || !own;
            return static_cast<int>(own ? next : end - 1);
        }
    }
    return NONE_LEFT;
}

void ThreadPool::take_part(Job &job, uint64_t generation, int thread) {
    const int count = count_.load(std::memory_order_relaxed);
    Seat &seat = seats_[thread];
    int next_look = PHASES_BEHIND;
    for (int index = 0; index < count; ++index) {
        Phase &phase = phases_[index];
        const uint64_t tag = generation << 40 | static_cast<uint64_t>(index) << 20 | AT_WORK;
        Ahead ahead;
        bool others = false;
        seat.processor.store(sched_getcpu(), std::memory_order_relaxed);
        seat.at.store(generation << 20 | static_cast<uint64_t>(index), std::memory_order_relaxed);
        int unit = claim(index, generation, thread, others);
        if (unit >= 0) ahead = job.ahead(index, thread);  // the job is there for sure as long as this thread holds a unit
        for (; unit >= 0; unit = claim(index, generation, thread, others)) {
            if (others && index >= next_look && send_away(generation, index, thread)) next_look = index + PHASES_BETWEEN;
            seat.processor.store(sched_getcpu(), std::memory_order_relaxed);
            seat.unit.store(tag, std::memory_order_release);
            job.work(index, unit, thread);
            seat.unit.store(0, std::memory_order_relaxed);
            finish(phase);
        }
        if (unit == TOO_LATE) return;  // this thread slept through the step
        ask_ahead(phase, generation, ahead);
        if (!wait_for(phase, tag, generation, thread)) return;
    }
}

// One more unit of the phase is done.
void ThreadPool::finish(Phase &phase) {
    const uint64_t before = phase.left.fetch_sub(1);
    if ((before & MAX_UNITS) == 1 && phase.waiting.load() > 0)
        syscall(SYS_futex, count_of(phase.left), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

// Memory would stand still while threads wait for the last unit. A prefetch of an address that is gone by now does nothing.
void ThreadPool::ask_ahead(const Phase &phase, uint64_t generation, const Ahead &ahead) {
    for (int64_t at = 0; at < ahead.bytes; at += LINES_AT_ONCE * 64) {
        const uint64_t left = phase.left.load(std::memory_order_acquire);
        if (left >> 40 != generation || (left & MAX_UNITS) == 0) return;
        for (int line = 0; line < LINES_AT_ONCE; ++line) __builtin_prefetch(ahead.data + at + line * 64, 0, 2);
    }
}

// False: the phase is of a later generation by now. A thread that holds the last unit may have been put aside for another
// process; who waits for it takes it to its own processor.
bool ThreadPool::wait_for(Phase &phase, uint64_t tag, uint64_t generation, int thread) {
    bool helped = false, of_this_step = true;
    int next_look = SPINS_IN_STEP;
    for (int spins = 1;; ++spins) {
        const uint64_t left = phase.left.load(std::memory_order_acquire);
        of_this_step = left >> 40 == generation;
        if (!of_this_step || (left & MAX_UNITS) == 0) break;
        const bool looks = spins >= next_look && spins % SPINS_BETWEEN_LOOKS == 0;
        if (looks && lend(tag, thread, helped)) {
            helped = true;
            next_look = std::min(spins + SPINS_AFTER_HELP, SPINS_BESIDE);
            continue;
        }
        if (spins < SPINS_BESIDE) {
            pause();
            continue;
        }
        spins = SPINS_BESIDE - 1;  // from now on a look after each sleep
        // A later generation may have the same count and put this thread to sleep: the end of its phase wakes it all the same.
        sleep_on(phase, left, &BETWEEN_LOOKS);
    }
    if (helped) {
        sched_setaffinity(0, sizeof(cpu_set_t), &seats_[thread].allowed);
        seats_[thread].helps.store(false);
    }
    return of_this_step;
}

void ThreadPool::sleep_on(Phase &phase, uint64_t left, const timespec *limit) {
    phase.waiting.fetch_add(1);
    syscall(SYS_futex, count_of(phase.left), FUTEX_WAIT_PRIVATE, static_cast<uint32_t>(left), limit, nullptr, 0);
    phase.waiting.fetch_sub(1);
}

// A thread that is behind does not run; where it queues for the processor of the one that calls this, it may do so for the 3 ms of a
// time slice while another processor is idle: the kernel leaves it there as hot (see lend). So may one that lends its processor, if
// whom it helps takes that before it has left. It is sent to any other one, at best where none of these threads was last. It holds no
// unit, or it would be waited for. False: none is behind.
bool ThreadPool::send_away(uint64_t generation, int index, int thread) {
    const int processor = sched_getcpu();
    if (processor < 0 || processor >= CPU_SETSIZE || refused_.load()) return false;
    bool sent = false;
    for (size_t i = 0; i < seats_.size() && !sent; ++i) {
        Seat &other = seats_[i];
        const uint64_t at = other.at.load(std::memory_order_relaxed);
        const bool behind = at >> 20 != generation || static_cast<int>(at & MAX_UNITS) + PHASES_BEHIND <= index;
        const int id = other.id.load(std::memory_order_relaxed);
        if (static_cast<int>(i) == thread || !behind || !id || other.held.exchange(true)) continue;
        cpu_set_t allowed;
        const bool known = may_run(other, allowed);
        cpu_set_t elsewhere = allowed;
        CPU_CLR(processor, &elsewhere);
        if (known && CPU_COUNT(&elsewhere)) {
            cpu_set_t free = elsewhere;
            for (const Seat &seat : seats_) {
                const int taken = seat.processor.load(std::memory_order_relaxed);
                if (taken >= 0 && taken < CPU_SETSIZE) CPU_CLR(taken, &free);
            }
            sent = send(id, CPU_COUNT(&free) ? free : elsewhere, allowed);
        }
        other.held.store(false);
    }
    sent_.fetch_add(sent, std::memory_order_relaxed);
    return sent;
}

// Where a thread that is held may run, but for the moment.
bool ThreadPool::may_run(const Seat &held, cpu_set_t &allowed) {
    CPU_ZERO(&allowed);
    if (!held.helps.load()) return !sched_getaffinity(held.id.load(std::memory_order_relaxed), sizeof allowed, &allowed);
    allowed = held.allowed;
    return true;
}

// A queued thread moves to `there` at once, and stays, though it may run where it might before. False: the system lets nobody be moved.
bool ThreadPool::send(int id, const cpu_set_t &there, const cpu_set_t &allowed) {
    if (sched_setaffinity(id, sizeof there, &there)) {
        refused_.store(true, std::memory_order_relaxed);
        return false;
    }
    sched_setaffinity(id, sizeof allowed, &allowed);
    return true;
}

// Takes a thread that was put aside within a unit of this phase to this processor, which the caller leaves for the other's. The
// kernel would not: a thread that ran within the last 0.5 ms counts as hot and stays in the queue of the processor that it was
// put aside on, behind whoever took it (task_hot, sched_migration_cost). The caller queues there in its place, so that neither
// processor is idle once the other's work is done: asleep it would come back late, or too soon. Put aside is whose processor
// time stands still. False: nobody is.
bool ThreadPool::lend(uint64_t tag, int thread, bool again) {
    const int processor = sched_getcpu();
    if (processor < 0 || processor >= CPU_SETSIZE || refused_.load() || lending_.exchange(true)) return false;
    Seat &own = seats_[thread];
    bool taken = false;
    if (again || begins_to_help(own))
        for (Seat &other : seats_) {
            taken = other.unit.load() == tag && put_aside(other) && take_here(other, processor);
            if (taken) {
                leave(processor, other.processor.load(std::memory_order_relaxed), own.allowed);
                break;
            }
        }
    if (!taken && !again) own.helps.store(false);
    lending_.store(false);
    return taken;
}

// Notes where it may run; not while another thread changes that.
bool ThreadPool::begins_to_help(Seat &own) {
    if (own.held.exchange(true)) return false;
    const bool known = !sched_getaffinity(0, sizeof own.allowed, &own.allowed);
    own.helps.store(known);
    own.held.store(false);
    return known;
}

bool ThreadPool::put_aside(const Seat &other) {
    timespec before, after;
    const clockid_t clock = other.clock.load(std::memory_order_relaxed);
    if (clock_gettime(clock, &before)) return false;
    for (int spins = 0; spins < SPINS_OF_A_LOOK; ++spins) pause();
    return !clock_gettime(clock, &after) && before.tv_sec == after.tv_sec && before.tv_nsec == after.tv_nsec;
}

// False: the system lets nobody be moved, or another thread is at it. A thread that has gone on meanwhile is moved for nothing.
bool ThreadPool::take_here(Seat &other, int processor) {
    if (other.held.exchange(true)) return false;
    cpu_set_t allowed, here;
    CPU_ZERO(&here);
    CPU_SET(processor, &here);
    const bool taken = may_run(other, allowed) && send(other.id.load(std::memory_order_relaxed), here, allowed);
    other.held.store(false);
    lent_.fetch_add(taken, std::memory_order_relaxed);
    return taken;
}

// Off `processor`, to `wanted` if this thread may run there, else to any other; where there is none the other thread needs a pause.
void ThreadPool::leave(int processor, int wanted, cpu_set_t others) {
    CPU_CLR(processor, &others);
    if (wanted >= 0 && wanted < CPU_SETSIZE && CPU_ISSET(wanted, &others)) {
        CPU_ZERO(&others);
        CPU_SET(wanted, &others);
    }
    if (!CPU_COUNT(&others) || sched_setaffinity(0, sizeof others, &others)) nanosleep(&BETWEEN_LOOKS, nullptr);
}

void ThreadPool::serve(int thread) {
    Seat &seat = seats_[thread];
    sit_down(seat);
    uint32_t seen = 0;
    while (true) {
        for (int spins = 0; spins < SPINS_AFTER_STEP && generation_.load(std::memory_order_acquire) == seen; ++spins)
            pause();
        while (generation_.load(std::memory_order_acquire) == seen) {
            seat.processor.store(sched_getcpu(), std::memory_order_relaxed);
            seat.asleep.store(true);
            parked_.fetch_add(1);
            syscall(SYS_futex, &generation_, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
            parked_.fetch_sub(1);
            seat.asleep.store(false, std::memory_order_relaxed);
        }
        seen = generation_.load(std::memory_order_acquire);
        if (stop_.load()) return;
        // The job may be over and gone by now: take_part touches it only while it holds a unit of this generation.
        take_part(*job_.load(std::memory_order_relaxed), seen & GENERATION_MASK, thread);
    }
}

}  // namespace octavo
