// SPDX-License-Identifier: Apache-2.0
#include "support/shm_world.h"

#include <exception>
#include <thread>
#include <utility>

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tessera/comm/transports/shm.h"
#include "tessera/comm/watchdog.h"

namespace tessera::test {

SharedFiles::SharedFiles(int ranks) {
  for (int rank = 0; rank < ranks; ++rank) {
    const int file = memfd_create("tessera-test", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, kTestArenaBytes) != 0) throw std::runtime_error("memfd");
    arenas_.push_back(file);
  }
  void* const page = mmap(nullptr,
                          ControlPage::bytes(ranks),
                          PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS,
                          -1,
                          0);
  if (page == MAP_FAILED) throw std::runtime_error("mmap");
  control_ = ControlPage::format(page, ranks);
}

SharedFiles::~SharedFiles() {
  munmap(control_, ControlPage::bytes(ranks()));
  for (const int file : arenas_)
    close(file);
}

std::unique_ptr<comm::World> SharedFiles::world(int rank) {
  return std::make_unique<comm::World>(
      rank,
      mesh::Mesh::data_parallel(ranks()),
      comm::make_shm_transport(rank, arenas_, kTestArenaBytes, control_),
      control_);
}

void run_shm_threads(int ranks, const std::function<void(comm::World&)>& fn) {
  SharedFiles files(ranks);
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(ranks));
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        const auto world = files.world(rank);
        try {
          fn(*world);
        } catch (const Error& error) {
          failures[static_cast<std::size_t>(rank)] = std::current_exception();
          world->transport().abort(error);
        }
      });
    }
  }
  if (files.control().aborted.load() == 0) return;
  if (const auto first = failures[files.control().abort_rank.load()]) std::rethrow_exception(first);
  comm::throw_if_aborted(files.control());
}

namespace {

int run_child(comm::World& world, const std::function<void(comm::World&)>& fn) {
  try {
    fn(world);
  } catch (const Error& error) {
    world.transport().abort(error);
    return exit_code(error.kind());
  } catch (const std::exception& error) {
    ADD_FAILURE() << error.what();
  }
  return ::testing::Test::HasFailure() ? 1 : 0;
}

}  // namespace

Processes::Processes(int ranks, const std::function<void(comm::World&)>& fn) : files_(ranks) {
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      int code = 1;
      {
        const auto world = files_.world(rank);
        code = run_child(*world, fn);
      }
      _exit(code);
    }
    if (pid < 0) throw std::runtime_error("fork");
    pids_.push_back(pid);
  }
}

Processes::~Processes() {
  for (const pid_t pid : pids_)
    if (pid > 0) kill(pid, SIGKILL);
  for (const pid_t pid : pids_)
    if (pid > 0) waitpid(pid, nullptr, 0);
}

int Processes::join(int rank) {
  pid_t& pid = pids_[static_cast<std::size_t>(rank)];
  int status = 0;
  waitpid(pid, &status, 0);
  pid = 0;
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

void run_processes(int ranks, const std::function<void(comm::World&)>& fn) {
  Processes processes(ranks, fn);
  for (int rank = 0; rank < ranks; ++rank)
    EXPECT_EQ(processes.join(rank), 0) << "rank " << rank;
}

}  // namespace tessera::test
