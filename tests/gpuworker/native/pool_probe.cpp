// Drives pool.cpp alone and prints what came of it; test_pool.py compiles and judges it.
#include "pool.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>

using namespace octavo;
using Clock = std::chrono::steady_clock;

namespace {

// Threads of this process that may not run where `allowed` says, or helpers with a home that have not one processor of those; a
// helper sets itself right only when it goes on.
int moved(const cpu_set_t &allowed, bool homes) {
    const auto limit = Clock::now() + std::chrono::seconds(10);
    int wrong = 1;
    while (wrong && Clock::now() < limit) {
        wrong = 0;
        for (const auto &task : std::filesystem::directory_iterator("/proc/self/task")) {
            cpu_set_t now;
            const int id = std::stoi(task.path().filename());
            if (sched_getaffinity(id, sizeof now, &now)) {
                ++wrong;
            } else if (homes && id != getpid()) {
                cpu_set_t common;
                CPU_AND(&common, &now, &allowed);
                wrong += CPU_COUNT(&now) != 1 || CPU_COUNT(&common) != 1;
            } else {
                wrong += !CPU_EQUAL(&now, &allowed);
            }
        }
        if (wrong) usleep(1000);
    }
    return wrong;
}

struct Counting : Job {
    Counting(int phases, int units) : done(phases * units), phases_(phases), units_(units) {
        sched_getaffinity(0, sizeof allowed, &allowed);
    }
    int phases() const override { return phases_; }
    int units(int) const override { return units_; }
    void work(int phase, int unit, int thread) override {
        done[phase * units_ + unit].fetch_add(1);
        act(phase, unit, thread);
    }
    virtual void act(int phase, int unit, int thread) = 0;
    void print(const ThreadPool &pool) {
        int wrong = 0;
        for (auto &count : done) wrong += count.load() != runs;
        std::printf("{\"lent\": %d, \"wrong\": %d, \"moved\": %d, \"homes\": %d}\n", static_cast<int>(pool.lent()), wrong,
                    moved(allowed, pool.homes()), pool.homes());
    }
    std::vector<std::atomic<int>> done;
    cpu_set_t allowed;
    int runs = 0, phases_, units_;
};

// Both threads hold a unit of phase 0; the second one's does not end before it is helped.
struct Stuck : Counting {
    Stuck() : Counting(2, 2) {}
    void act(int phase, int, int thread) override {
        const auto limit = Clock::now() + std::chrono::seconds(20);
        arrived[phase].fetch_add(1);
        while (arrived[phase].load() < 2 * (runs + 1) && Clock::now() < limit) sched_yield();
        while (phase == 0 && thread == 1 && pool->lent() <= static_cast<uint64_t>(runs) && Clock::now() < limit)
            usleep(1000);
    }
    std::atomic<int> arrived[2] = {};
    ThreadPool *pool = nullptr;
};

// Units that lose their processor now and then.
struct Uneven : Counting {
    Uneven() : Counting(30, 7) {}
    void act(int phase, int unit, int) override {
        if ((phase * 7 + unit + runs) % 23 == 0) usleep(300);
    }
};

// From now on no thread of this process may be told where to run, as in a sandbox.
bool forbid_moving() {
    sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_sched_setaffinity, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog program{sizeof rules / sizeof *rules, rules};
    return !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) && !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

// The first `count` processors that this process may use, for it and for what it starts.
bool narrow(int count) {
    cpu_set_t had, now;
    CPU_ZERO(&now);
    if (sched_getaffinity(0, sizeof had, &had)) return false;
    for (int at = 0; at < CPU_SETSIZE && CPU_COUNT(&now) < count; ++at)
        if (CPU_ISSET(at, &had)) CPU_SET(at, &now);
    return CPU_COUNT(&now) == count && !sched_setaffinity(0, sizeof now, &now);
}

int drive_stuck(bool homes) {
    ThreadPool pool(2, 2, homes);
    Stuck job;
    job.pool = &pool;
    for (; job.runs < 20; ++job.runs) pool.run(job);
    job.print(pool);
    return 0;
}

int drive_uneven(int threads) {
    ThreadPool pool(threads, 30);
    Uneven job;
    for (; job.runs < 60; ++job.runs) pool.run(job);
    job.print(pool);
    return 0;
}

}  // namespace

int main(int count, char **words) {
    const std::string which = count > 1 ? words[1] : "";
    if (which == "stuck") return drive_stuck(false);
    if (which == "uneven") return drive_uneven(3);
    if (which == "refused") return forbid_moving() ? drive_uneven(3) : 77;
    if (!narrow(2)) return 77;
    if (which == "stuck at home") return drive_stuck(true);
    if (which == "uneven at home") return drive_uneven(2);
    if (which == "refused at home") return forbid_moving() ? drive_uneven(2) : 77;
    return 1;
}
