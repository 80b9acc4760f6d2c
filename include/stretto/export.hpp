#pragma once
// Symbols are hidden unless they carry this mark: what it stands on is the interface.
#define STRETTO_API __attribute__((visibility("default")))
// What stands inside of what carries it, and is the library's own.
#define STRETTO_HIDDEN __attribute__((visibility("hidden")))
