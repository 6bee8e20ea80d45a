// SPDX-License-Identifier: Apache-2.0
// Command lines that run the program on other hosts over ssh, and the environment that it gets
// there.
#pragma once

#include <string>
#include <vector>

#include "tessera/hosts/run_on_hosts.h"

namespace tessera::hosts {

/// Returns the words of `--launcher_args`, which are separated by spaces.
std::vector<std::string> launcher_words(const std::string& text);

/// Commands of the program that this process runs on other hosts.
inline constexpr const char* kAgentCommand = "agent";
inline constexpr const char* kCopyServerCommand = "copy-server";

/// Returns the command line for a shell of a host that becomes the agent, or runs another command
/// of the program.
std::string shell_command(const RemoteOptions& options,
                          const std::vector<std::string>& environment,
                          const char* command = kAgentCommand);

/// Returns the command line that runs that command on `host`. Words that a shell of the host reads
/// are quoted.
std::vector<std::string> ssh_command(const RemoteOptions& options,
                                     const std::string& host,
                                     const std::string& folder,
                                     const std::vector<std::string>& environment,
                                     const char* command = kAgentCommand);

/// Returns the command line that finds out over ssh whether `host` can run the program.
std::vector<std::string> ssh_probe(const RemoteOptions& options, const std::string& host);

/// Returns the assignments that every host gets: the variables of this process whose names begin
/// with NCCL, GLOO, PYTHON, MV2, UCX, MLFLOW, OMP, MKL or TESSERA_, and LD_LIBRARY_PATH; then the
/// lines `NAME=VALUE` of `.deepspeed_env` in the home folder, or of the file that DS_ENV_FILE
/// names. Throws Error{Config} with file and line for a line of another form, and for a file that
/// another user can write.
std::vector<std::string> passed_environment();

}  // namespace tessera::hosts
