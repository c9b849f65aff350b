// fontconfig keeps patterns to the end of the program without a pointer to them: LeakSanitizer is not to report those.

// NOLINTNEXTLINE(bugprone-reserved-identifier): the sanitizer's name
extern "C" const char* __lsan_default_suppressions() { return "leak:libfontconfig\n"; }
