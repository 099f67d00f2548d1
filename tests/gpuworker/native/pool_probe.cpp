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
#include <fstream>
#include <sstream>
#include <string>

using namespace octavo;
using Clock = std::chrono::steady_clock;
constexpr int CANNOT = 77;

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

// The caller runs on the processor that the other thread fell asleep on, and does not leave it before that one has a unit.
struct Woken : Counting {
    Woken() : Counting(1, 2) {}
    void act(int, int, int thread) override {
        if (thread == 1) other = static_cast<int>(syscall(SYS_gettid));
        const auto limit = Clock::now() + std::chrono::seconds(20);
        arrived.fetch_add(1);
        while (arrived.load() < 2 * (runs + 1) && Clock::now() < limit) {
        }
    }
    std::atomic<int> arrived{0}, other{0};
};

// The processor on which a thread of this process ran last: field 39 of its stat.
int last_processor(int id) {
    std::ifstream file("/proc/self/task/" + std::to_string(id) + "/stat");
    std::string line, word;
    std::getline(file, line);
    std::istringstream words(line.substr(line.rfind(')') + 1));
    for (int field = 3; field <= 39; ++field) words >> word;
    return std::stoi(word);
}

int wake_beside() {
    ThreadPool pool(2, 1);
    Woken job;
    for (; job.runs < 20; ++job.runs) {
        while (pool.asleep() == 0) usleep(1000);
        cpu_set_t here = job.allowed;
        if (job.other) {
            CPU_ZERO(&here);
            CPU_SET(last_processor(job.other), &here);
        }
        if (sched_setaffinity(0, sizeof here, &here)) return CANNOT;
        pool.run(job);
        sched_setaffinity(0, sizeof job.allowed, &job.allowed);
    }
    job.print(pool);
    return 0;
}

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
    if (count > 1 && std::strcmp(words[1], "woken") == 0) return wake_beside();
    if (count > 1 && std::strcmp(words[1], "refused") == 0 && !forbid_moving()) return CANNOT;
    ThreadPool pool(3, 30);
    Uneven job;
    for (; job.runs < 60; ++job.runs) pool.run(job);
    job.print(pool);
    return 0;
}
