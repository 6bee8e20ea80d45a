// SPDX-License-Identifier: Apache-2.0
// The parts of `tessera tune` that --autotuning shares.
#pragma once

#include <filesystem>

#include "tessera/cli/host_flags.h"
#include "tessera/predict/described_machine.h"
#include "tessera/tune/session.h"

namespace tessera::cli {

/// The rates of this machine; measures them first if that was not done yet.
predict::DescribedMachine measured_machine(bool tell);
/// The command of this program for trials.
void set_trial_command(tune::TuneOptions& options);
/// Lets trials run on all hosts of a hostfile at once; writes a hostfile for each into `folder`,
/// which all of them must see. Does nothing if there is only this host.
void set_trial_hosts(tune::TuneOptions& options,
                     const HostFlags& flags,
                     const HostChoice& choice,
                     const std::filesystem::path& folder);
/// Prints a search without trials.
int show_search(tune::Space& space, const tune::SearchOptions& options, bool as_json);
/// Tunes until the end or a signal, with lines for the user; prints the table.
tune::Tuned tune_and_tell(tune::Space& space, tune::TuneOptions& options, bool quiet);
/// True once a signal has stopped tune_and_tell().
bool stopped_by_user();

/// The ranks of a trial on each of several hosts, where `-n` is not given: the smallest number of
/// slots.
int fewest_slots(const std::vector<hosts::HostSlots>& pool);

}  // namespace tessera::cli
