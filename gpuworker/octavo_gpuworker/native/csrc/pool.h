// ThreadPool: phases of units that threads claim one by one. A phase ends when its units are done, not when all threads
// arrive, so a thread that the operating system has put aside delays nobody unless it holds a unit.
#pragma once
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace octavo {

constexpr int MAX_UNITS = (1 << 20) - 1;

// What a run executes. `units(phase)` is asked once, before the phase opens to anybody.
struct Job {
    virtual ~Job() = default;
    virtual int phases() const = 0;
    virtual int units(int phase) const = 0;
    virtual void work(int phase, int unit, int thread) = 0;
};

class ThreadPool {
  public:
    // `threads` includes the caller of run().
    ThreadPool(int threads, int max_phases);
    ~ThreadPool();
    ThreadPool(const ThreadPool &) = delete;
    ThreadPool &operator=(const ThreadPool &) = delete;
    // Runs all phases in order; returns when the last one is done. One caller at a time.
    void run(Job &job);
    int threads() const { return static_cast<int>(workers_.size()) + 1; }

  private:
    struct alignas(64) Phase {
        std::atomic<uint64_t> claim{0};  // generation << 40 | units << 20 | next
        std::atomic<uint64_t> done{0};   // generation << 40 | units done
        std::atomic<int> waiting{0};     // threads that sleep until its last unit is done
    };

    void stop();
    void serve(int thread);
    void take_part(Job &job, uint64_t generation, int thread);
    static bool wait_for(Phase &phase, uint64_t generation, uint64_t units);

    std::vector<Phase> phases_;
    std::vector<std::thread> workers_;
    std::atomic<Job *> job_{nullptr};
    alignas(64) std::atomic<uint32_t> generation_{0};
    std::atomic<int> count_{0};
    std::atomic<bool> stop_{false};
    alignas(64) std::atomic<int> parked_{0};
};

}  // namespace octavo
