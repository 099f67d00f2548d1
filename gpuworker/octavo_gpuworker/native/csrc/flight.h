// Flight: steps of the same rows one after the other, on a thread of their own. Whoever began it takes the tokens of each step while
// the next one runs, so that no processor waits for what is done with them.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "api.h"
#include "pool.h"
#include "step.h"

namespace octavo {

class Flight : private Bell {
  public:
    // `busy` is held while a flight is on: steps of one model run one at a time.
    Flight(Step &, ThreadPool &, std::mutex &busy);
    ~Flight();
    Flight(const Flight &) = delete;
    Flight &operator=(const Flight &) = delete;

    // Begins one; the one before must be over (std::logic_error). See OctavoFlight.
    void begin(const OctavoBatch &, const OctavoFlight &);
    // It may go on up to so many steps in all; a smaller number than before changes nothing.
    void extend(int64_t limit);
    // No further step begins.
    void halt();
    // Waits until more than `seen` steps may be taken, or it is over; how many may be. With nothing left to take `failure` says why the
    // next one could not run, or is empty.
    int64_t wait(int64_t seen, bool &over, std::string &failure);

  private:
    void serve();
    void fly();
    bool book(int64_t elapsed_ns);
    bool goes_on(bool ended);
    void advance();
    void ring() override;

    Step &step_;
    ThreadPool &threads_;
    std::mutex &busy_;
    std::mutex mutex_;  // of all below
    std::condition_variable told_to_, may_take_;
    OctavoBatch batch_{};
    OctavoFlight flight_{};
    std::vector<int32_t> stops_;  // ascending
    int64_t limit_ = 0, done_ = 0, told_ = 0;
    bool begun_ = false, over_ = true, halted_ = false, end_ = false;
    std::string failure_;
    std::thread thread_;
};

}  // namespace octavo
