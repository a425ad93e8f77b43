# make demo               set up, then train, evaluate and sample the main project      (PAPER=name for another one)
# make train              its training alone                                           (ARGS="--lr 1e-3" is passed on)
# make reproduce          its headline claim at small scale                            (ARGS="--budget full" is passed on)
# make test               every test of every project and the repository's own checks  (PAPER=name for one project)
# make lint               style, copied code, imports, results and READMEs
# make standalone         each project copied alone to an empty place and run there
# make install            only the set-up
# make clean              remove environments and caches
#
# Each sets up what it needs, once. What they do is in .ci/make.py.

PYTHON ?= python3
export PAPER ARGS

.PHONY: help install demo train reproduce test lint standalone clean

help:
	@sed -n 's/^# \?//; /^$$/q; p' Makefile

install demo train reproduce test lint standalone clean:
	@$(PYTHON) .ci/make.py $@
