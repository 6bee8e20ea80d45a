// SPDX-License-Identifier: Apache-2.0
// The program: picks the command, and turns whatever leaves it into words and an exit code.
#pragma once

/// The whole program but for the loading of its library. Returns the exit code.
extern "C" int tessera_main(int argc, char** argv);
