#include "flight.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <new>
#include <stdexcept>

namespace octavo {
namespace {

int64_t now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

Flight::Flight(Step &step, ThreadPool &threads, std::mutex &busy)
    : step_(step), threads_(threads), busy_(busy), thread_([this] { serve(); }) {}

Flight::~Flight() {
    {
        const std::lock_guard<std::mutex> hold(mutex_);
        end_ = true;
    }
    told_to_.notify_all();
    thread_.join();
}

void Flight::begin(const OctavoBatch &batch, const OctavoFlight &flight) {
    {
        const std::lock_guard<std::mutex> hold(mutex_);
        if (!over_) throw std::logic_error("a flight is on; wait for its end first");
        batch_ = batch;
        flight_ = flight;
        stops_.assign(flight.stops, flight.stops + flight.stop_count);
        limit_ = std::max<int64_t>(1, flight.limit);
        done_ = told_ = 0;
        begun_ = true;
        over_ = halted_ = false;
        failure_.clear();
    }
    told_to_.notify_all();
}

void Flight::extend(int64_t limit) {
    {
        const std::lock_guard<std::mutex> hold(mutex_);
        limit_ = std::max(limit_, limit);
    }
    told_to_.notify_all();
}

void Flight::halt() {
    {
        const std::lock_guard<std::mutex> hold(mutex_);
        halted_ = true;
    }
    told_to_.notify_all();
}

int64_t Flight::wait(int64_t seen, bool &over, std::string &failure) {
    std::unique_lock<std::mutex> hold(mutex_);
    may_take_.wait(hold, [&] { return told_ > seen || over_; });
    over = over_;
    if (over_ && told_ <= seen) failure = failure_;
    return told_;
}

void Flight::serve() {
    std::unique_lock<std::mutex> hold(mutex_);
    while (true) {
        told_to_.wait(hold, [this] { return begun_ || end_; });
        if (end_) return;
        begun_ = false;
        hold.unlock();
        std::string failure;
        try {
            const std::lock_guard<std::mutex> one_at_a_time(busy_);
            fly();
        } catch (const std::bad_alloc &) {
            failure = "out of memory for this step";
        } catch (const std::exception &error) {
            failure = error.what();
        }
        hold.lock();
        if (!failure.empty() && batch_.bell > 0 && !done_) eventfd_write(batch_.bell, 1);
        failure_ = failure;
        over_ = true;
        told_ = done_;
        may_take_.notify_all();
    }
}

void Flight::fly() {
    while (true) {
        const int64_t began_ns = now_ns();
        if (auto fault = step_.check(batch_); !fault.empty()) throw std::invalid_argument(fault);
        step_.prepare(batch_, threads_.threads());
        threads_.run(step_, this);
        if (!goes_on(book(now_ns() - began_ns))) return;
        advance();
    }
}

// All threads have begun the next step: who takes the last one's tokens keeps none of them waiting.
void Flight::ring() {
    bool first;
    {
        const std::lock_guard<std::mutex> hold(mutex_);
        first = done_ == 0;
        told_ = done_;
    }
    if (!first) may_take_.notify_all();
    else if (batch_.bell > 0) eventfd_write(batch_.bell, 1);
}

// Leaves the step's tokens where they are taken from; whether one of them ends the flight.
bool Flight::book(int64_t elapsed_ns) {
    const int64_t at = done_ % flight_.room;
    bool ends = false;
    for (int row = 0; row < batch_.rows; ++row) {
        const int32_t token = batch_.out_tokens[row];
        flight_.tokens[at * batch_.rows + row] = token;
        ends = ends || token < 0 || std::binary_search(stops_.begin(), stops_.end(), token);
    }
    flight_.elapsed_ns[at] = elapsed_ns;
    return ends;
}

bool Flight::goes_on(bool ended) {
    std::unique_lock<std::mutex> hold(mutex_);
    ++done_;
    if (ended) return false;
    const auto held = [this] { return halted_ || end_ || __atomic_load_n(flight_.hold, __ATOMIC_ACQUIRE); };
    if (limit_ <= done_ && !flight_.waits) return false;
    if (limit_ <= done_ && !held()) {  // whoever takes the steps may be behind: it needs the last one's tokens to let it go on
        told_ = done_;
        may_take_.notify_all();
        told_to_.wait(hold, [&] { return limit_ > done_ || held(); });
    }
    return !held();
}

// Each row's token is the next one to be computed.
void Flight::advance() {
    auto *tokens = const_cast<int32_t *>(batch_.token_ids), *context = const_cast<int32_t *>(batch_.context_len);
    auto *positions = const_cast<int64_t *>(batch_.positions);
    for (int row = 0; row < batch_.rows; ++row) {
        tokens[row] = batch_.out_tokens[row];
        ++context[row];
        ++positions[row];
    }
}

}  // namespace octavo
