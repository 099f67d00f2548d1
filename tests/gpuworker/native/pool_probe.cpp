// Drives pool.cpp alone and prints what came of it; test_pool.py compiles and judges it.
#include "pool.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>

using namespace octavo;
using Clock = std::chrono::steady_clock;

namespace {

// Threads of this process that may not run where `allowed` says; a helper sets itself right only when it goes on.
int moved(const cpu_set_t &allowed) {
    const auto limit = Clock::now() + std::chrono::seconds(10);
    int wrong = 1;
    while (wrong && Clock::now() < limit) {
        wrong = 0;
        for (const auto &task : std::filesystem::directory_iterator("/proc/self/task")) {
            cpu_set_t now;
            const int id = std::stoi(task.path().filename());
            wrong += sched_getaffinity(id, sizeof now, &now) || !CPU_EQUAL(&now, &allowed);
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
        std::printf("{\"lent\": %d, \"sent\": %d, \"wrong\": %d, \"moved\": %d}\n", static_cast<int>(pool.lent()),
                    static_cast<int>(pool.sent()), wrong, moved(allowed));
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

// The second thread is done with its part of a phase and waits for the first one, when a signal keeps it until it was sent away.
struct Behind : Counting {
    Behind() : Counting(40, 4) {}
    bool neighbours(int) const override { return true; }
    void act(int phase, int, int thread) override {
        if (thread == 1) second = pthread_self();
        if (thread == 1 || phase != 20 || kept[runs].exchange(true)) return;
        const auto limit = Clock::now() + std::chrono::seconds(20);
        const auto begun = [&] {
            int found = 0;
            for (int unit = 0; unit < units_; ++unit) found += done[phase * units_ + unit].load() == runs + 1;
            return found;
        };
        while (begun() < units_ && Clock::now() < limit) usleep(100);
        usleep(2000);
        pthread_kill(second, SIGUSR1);
    }
    static void keep(int) {
        const auto limit = Clock::now() + std::chrono::seconds(20);
        while (pool->sent() <= static_cast<uint64_t>(job->runs) && Clock::now() < limit) usleep(1000);
    }
    std::atomic<bool> kept[32] = {};
    pthread_t second{};
    static ThreadPool *pool;
    static Behind *job;
};

ThreadPool *Behind::pool = nullptr;
Behind *Behind::job = nullptr;

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

}  // namespace

int main(int count, char **words) {
    if (count > 1 && std::strcmp(words[1], "stuck") == 0) {
        ThreadPool pool(2, 2);
        Stuck job;
        job.pool = &pool;
        for (; job.runs < 20; ++job.runs) pool.run(job);
        job.print(pool);
        return 0;
    }
    if (count > 1 && std::strcmp(words[1], "behind") == 0) {
        ThreadPool pool(2, 40);
        Behind job;
        Behind::pool = &pool;
        Behind::job = &job;
        std::signal(SIGUSR1, Behind::keep);
        for (; job.runs < 20; ++job.runs) pool.run(job);
        job.print(pool);
        return 0;
    }
    if (count > 1 && std::strcmp(words[1], "refused") == 0 && !forbid_moving()) return 77;
    ThreadPool pool(3, 30);
    Uneven job;
    for (; job.runs < 60; ++job.runs) pool.run(job);
    job.print(pool);
    return 0;
}
