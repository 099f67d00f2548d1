// ThreadPool: phases of units that threads claim one by one. A phase ends when its units are done, not when all threads
// arrive, so a thread that the operating system has put aside delays nobody unless it holds a unit.
#pragma once
#include <sched.h>
#include <time.h>

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace octavo {

constexpr int MAX_UNITS = (1 << 20) - 1;

// The first unit of a thread's own share of neighbouring units.
inline int share_start(int units, int thread, int threads) { return static_cast<int>(static_cast<int64_t>(units) * thread / threads); }


struct Ahead {
    const uint8_t *data = nullptr;
    int64_t bytes = 0;
};

// What a run executes. `units(phase)` is asked once, before the phase opens to anybody.
struct Job {
    virtual ~Job() = default;
    virtual int phases() const = 0;
    virtual int units(int phase) const = 0;
    virtual void work(int phase, int unit, int thread) = 0;
    // Whether the units of a phase lie one behind the other in memory: a thread then takes neighbours, so that what it asks for ahead
    // of one unit is the next one, and from the end of another's share when its own is done.
    virtual bool neighbours(int) const { return false; }
    // What a thread reads first in a later phase, asked for while it waits for the end of this one.
    virtual Ahead ahead(int, int) const { return {}; }
};


// What is rung once all threads of a run were told to begin.
struct Bell {
    virtual ~Bell() = default;
    virtual void ring() = 0;
};


class ThreadPool {
  public:
    // `threads` includes the caller of run().
    ThreadPool(int threads, int max_phases);
    ~ThreadPool();
    ThreadPool(const ThreadPool &) = delete;
    ThreadPool &operator=(const ThreadPool &) = delete;
    // Runs all phases in order; returns when the last one is done. One caller at a time.
    void run(Job &job, Bell *bell = nullptr);
    int threads() const { return static_cast<int>(workers_.size()) + 1; }
    // How often a waiting thread has given its processor to one that was put aside within a unit.
    uint64_t lent() const { return lent_.load(std::memory_order_relaxed); }
    // How often a thread was sent to another processor by the one that it queued behind, or slept beside.
    uint64_t sent() const { return sent_.load(std::memory_order_relaxed); }
    int asleep() const { return parked_.load(); }

  private:
    struct alignas(64) Phase {
        std::atomic<uint64_t> left{0};   // generation << 40 | units that are not done
        std::atomic<int> waiting{0};     // threads that sleep until its last unit is done
        std::atomic<bool> shared{true};  // all units are in the first span, and all threads take them in order
    };

    // What a thread is at, so that one that waits for it can help it.
    struct alignas(64) Seat {
        std::atomic<int> id{0};           // of the system
        std::atomic<clockid_t> clock{CLOCK_MONOTONIC};  // the processor time that it has had
        std::atomic<uint64_t> unit{0};    // generation << 40 | phase << 20 | 1; 0: none
        std::atomic<uint64_t> at{0};      // generation << 20 | phase that it has come to
        std::atomic<int> processor{-1};   // where it began that, or the unit, or fell asleep
        std::atomic<bool> asleep{false};  // until the next step
        bool woken = false;               // elsewhere than it may run; of who holds it
        std::atomic<bool> held{false};    // somebody looks where it may run, and changes it for a moment
        std::atomic<bool> helps{false};   // it may be told to run elsewhere than `allowed`, to leave its processor to another thread
        cpu_set_t allowed;                // where it may run, while it helps or is woken
    };

    void stop();
    void serve(int thread);
    void take_part(Job &job, uint64_t generation, int thread);
    int claim(int index, uint64_t generation, int thread, bool &others);
    void finish(Phase &phase);
    static void ask_ahead(const Phase &phase, uint64_t generation, const Ahead &ahead);
    bool wait_for(Phase &phase, uint64_t tag, uint64_t generation, int thread);
    static void sleep_on(Phase &phase, uint64_t left, const timespec *limit);
    static void sit_down(Seat &seat);
    void wake();
    bool begins_elsewhere(Seat &other, int here);
    bool send_away(uint64_t generation, int index, int thread);
    static bool may_run(const Seat &held, cpu_set_t &allowed);
    bool send(int id, const cpu_set_t &there, const cpu_set_t &allowed);
    bool lend(uint64_t tag, int thread, bool again);
    static bool begins_to_help(Seat &own);
    static bool put_aside(const Seat &other);
    bool take_here(Seat &other, int processor);
    static void leave(int processor, int wanted, cpu_set_t others);

    std::vector<Phase> phases_;
    std::vector<std::atomic<uint64_t>> spans_;  // [phases, threads], units to claim: generation << 40 | end << 20 | next
    std::vector<Seat> seats_;
    std::vector<std::thread> workers_;
    std::atomic<Job *> job_{nullptr};
    alignas(64) std::atomic<uint32_t> generation_{0};
    std::atomic<int> count_{0};
    std::atomic<bool> stop_{false};
    alignas(64) std::atomic<int> parked_{0};
    std::atomic<bool> lending_{false};  // one at a time
    std::atomic<bool> refused_{false};  // the system lets no thread be moved
    std::atomic<uint64_t> lent_{0}, sent_{0};
};

}  // namespace octavo
