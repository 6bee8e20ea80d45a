// SPDX-License-Identifier: Apache-2.0
// The program: selects the command, and converts errors to messages and an exit code.
#pragma once

/// The whole program except for the loading of its library. Returns the exit code.
extern "C" int tessera_main(int argc, char** argv);
