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


class ThreadPool {
  public:
    // `threads` includes the caller of run().
    ThreadPool(int threads, int max_phases);
    ~ThreadPool();
    ThreadPool(const ThreadPool &) = delete;
    ThreadPool &operator=(const ThreadPool &) = delete;
    // Runs all phases in order; returns when the last one is done. One caller at a time. `bell`: an eventfd that is rung once all
    // threads were told to begin; 0: none.
    void run(Job &job, int bell = 0);
    int threads() const { return static_cast<int>(workers_.size()) + 1; }
    // How often a waiting thread has given its processor to one that was put aside within a unit.
    uint64_t lent() const { return lent_.load(std::memory_order_relaxed); }
    // How often a sleeping thread was told to begin elsewhere than where the caller runs.
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
        std::atomic<int> processor{-1};   // where it began that, or fell asleep
        std::atomic<bool> asleep{false};  // until the next step
        bool sent = false;                // its `allowed` is to be set again; of who has lending_
        cpu_set_t allowed;                // where it may run, from when it helps, or is woken, to when it goes on
    };

    void stop();
    void serve(int thread);
    void take_part(Job &job, uint64_t generation, int thread);
    int claim(int index, uint64_t generation, int thread);
    void finish(Phase &phase);
    static void ask_ahead(const Phase &phase, uint64_t generation, const Ahead &ahead);
    bool wait_for(Phase &phase, uint64_t tag, uint64_t generation, int thread);
    static void sleep_on(Phase &phase, uint64_t left, const timespec *limit);
    void wake();
    bool send_away(Seat &other, int here);
    static void sit_down(Seat &seat);
    bool lend(uint64_t tag, int thread, bool again);
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
    std::atomic<bool> lending_{false};  // one at a time looks where threads may run, and changes it
    std::atomic<bool> refused_{false};  // the system lets no thread be moved
    std::atomic<uint64_t> lent_{0}, sent_{0};
};

}  // namespace octavo
